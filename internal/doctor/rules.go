// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"shunt/internal/api"
	"shunt/internal/ruleset"
)

// Rules is what is known of the firewall's rules.
type Rules struct {
	Report ruleset.Report
	Mark   bool // policy = "mark": the operator says what may be fast
}

// readRules reads the ruleset of this network namespace.
func readRules() []api.Check {
	report, err := new(ruleset.Reader).Read()
	if err != nil {
		return []api.Check{fail("rules", err.Error(), "run as root")}
	}
	return rules(Rules{Report: report})
}

// rules names those that look at each packet, which cost speed, and those that only
// count, which count less than they did.
func rules(r Rules) (checks []api.Check) {
	for _, f := range r.Report.Enforcing {
		var touches []string
		for _, m := range f.Touches {
			touches = append(touches, m.String())
		}
		what := fmt.Sprintf("%s looks at each packet", f)
		if r.Mark {
			checks = append(checks, ok("rules", "%s: it sees the first packets of what is marked, and one per lease", what))
			continue
		}
		checks = append(checks, warn("rules", fmt.Sprintf("%s: nothing that it could touch is fast (%s)", what, strings.Join(touches, "; ")),
			`accept established connections ahead of it, or mark what may be fast and set policy = "mark"`))
	}
	if n := r.Report.Counted; n > 0 {
		names := strings.Join(r.Report.Counting, ", ")
		if more := n - len(r.Report.Counting); more > 0 {
			names += fmt.Sprintf(", and %d more", more)
		}
		checks = append(checks, ok("rules", "%d count or log only what the kernel gets: %s", n, names))
	}
	if checks == nil {
		checks = append(checks, ok("rules", "none that forwarded packets reach looks at each packet"))
	}
	if c := r.Report.Clock; c.Time > 0 {
		checks = append(checks, ok("clocks", "no lease lasts over half of it: %s", c))
	}
	return checks
}
