// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// weighFor is how long bytes are counted for the verdict.
const weighFor = 500 * time.Millisecond

// candidate is a port and what it could have.
type candidate struct {
	link     kernel.Link
	decision eligible.Decision
	uppers   []string // devices that stand on it
	rx       uint64   // bytes that came in while it was weighed
	tagged   uint64   // and those of them that went up to devices on it
}

// weigh says in one line how much of what comes in could be fast, and what keeps most of the rest from
// it. It takes as long as weighFor.
func weigh(paths config.Paths, patterns []string, mode func(string) eligible.Mode) (api.Check, error) {
	links, err := kernel.Links()
	if err != nil {
		return api.Check{}, err
	}
	before, err := received()
	if err != nil {
		return api.Check{}, err
	}
	time.Sleep(weighFor)
	after, err := received()
	if err != nil {
		return api.Check{}, err
	}
	var ports []candidate
	for _, l := range links {
		if !named(patterns, l) {
			continue
		}
		facts, failed := gather(paths, l)
		c := candidate{link: l, uppers: l.Uppers, rx: after[l.Name] - before[l.Name]}
		if failed == nil {
			c.decision = eligible.Decide(facts, mode(l.Name))
		} else {
			c.decision.Reason, c.decision.Remedy = failed.Finding, failed.Remedy
		}
		for _, upper := range l.Uppers {
			c.tagged += after[upper] - before[upper]
		}
		ports = append(ports, c)
	}
	return verdict(ports), nil
}

// named reports whether a link is to be looked at: by a name or wildcard, or, where none is given, if
// frames come in by it and not by another device below it.
func named(patterns []string, l kernel.Link) bool {
	for _, pattern := range patterns {
		if hit, err := path.Match(pattern, l.Name); hit && err == nil {
			return true
		}
	}
	return len(patterns) == 0 && ethernet(l) && l.ParentName == ""
}

// ethernet leaves out what carries no frames of others: the loopback device and shunt's own pair.
func ethernet(l kernel.Link) bool {
	return l.Type == kernel.Ethernet && l.Name != kernel.PairOuter && l.Name != kernel.PairInner
}

// verdict weighs the ports. Bridges and bonds are made of them and not weighed again.
func verdict(ports []candidate) api.Check {
	type cause struct {
		finding, remedy string
		bytes           uint64
	}
	var causes []cause
	var total, fast uint64
	good, all := 0, 0
	for _, c := range ports {
		if l := c.link; l.Kind == "bridge" || l.Kind == "bond" || l.Kind == "team" || l.Kind == "vrf" || l.Type != kernel.Ethernet {
			continue
		}
		all++
		total += c.rx
		tagged := min(c.tagged, c.rx)
		switch {
		case !c.decision.Attach:
			causes = append(causes, cause{c.decision.Reason, c.decision.Remedy, c.rx})
		case len(c.uppers) > 0:
			good++
			fast += c.rx - tagged
			finding, remedy := Stacked(c.link.Name, c.uppers)
			causes = append(causes, cause{finding, remedy, tagged})
		default:
			good++
			fast += c.rx
		}
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return cmp.Compare(b.bytes, a.bytes) })
	check := api.Check{Name: "verdict", Level: api.LevelOK}
	switch {
	case all == 0:
		return warn("verdict", "there is no Ethernet port", "see what there is with `ip link`")
	case total == 0:
		check.Finding = fmt.Sprintf("%d of %d Ethernet ports can be fast; nothing came in just now to weigh them by", good, all)
	default:
		check.Finding = fmt.Sprintf("%d %% of the bytes that come in could be fast; %d of %d Ethernet ports can", 100*fast/total, good, all)
	}
	if good == 1 && all == 1 {
		check.Level = api.LevelWarn
		check.Finding += "; a flow is fast only if it comes in and leaves by such a port"
		check.Remedy = "name the other side of the router, too"
	}
	if len(causes) > 0 {
		check.Level = api.LevelWarn
		check.Finding += "; the largest cause why not more: " + causes[0].finding
		check.Remedy = cmp.Or(causes[0].remedy, "see below")
	}
	if good == 0 {
		check.Level = api.LevelFail
	}
	return check
}

// Stacked is the finding about a port that others stand on: what they carry comes in tagged, or under
// other addresses.
func Stacked(port string, uppers []string) (finding, remedy string) {
	verb := "stands"
	if len(uppers) > 1 {
		verb = "stand"
	}
	return fmt.Sprintf("%s %s on %s: what goes through there stays with the kernel", strings.Join(uppers, ", "), verb, port),
		fmt.Sprintf("let what should be fast come by %s itself, untagged, or by another port", port)
}

// received reads how many bytes each interface of this network namespace has received.
func received() (map[string]uint64, error) {
	file, err := os.Open("/proc/thread-self/net/dev")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	bytes := map[string]uint64{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, figures, found := strings.Cut(lines.Text(), ":")
		if words := strings.Fields(figures); found && len(words) > 0 {
			bytes[strings.TrimSpace(name)], _ = strconv.ParseUint(words[0], 10, 64)
		}
	}
	return bytes, nil
}
