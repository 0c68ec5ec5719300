// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"strings"
	"testing"

	"shunt/internal/kernel"
)

// TestQueuesPage: the list of what stands behind TC egress is the one that the daemon goes by.
func TestQueuesPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| part | reads of a packet | keeps flows slow | kernel function |\n|---|---|---|---|\n")
	for _, k := range kernel.QueueKinds() {
		slow := "no"
		switch {
		case k.Deeper:
			slow = "always"
		case k.Options != "":
			slow = "with " + k.Options
		}
		fmt.Fprintf(&b, "| %s `%s` | %s | %s | %s |\n", k.Part, k.Kind, k.Reads, slow, functions(k.Function))
	}
	hold(t, "docs/queues.md", section(t, "docs/queues.md", "kinds", b.String()))
}

// functions puts each function of a list into backticks.
func functions(list string) string {
	names := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(",; ", r) })
	return "`" + strings.Join(names, "`, `") + "`"
}
