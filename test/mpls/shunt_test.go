// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"shunt/internal/lab"
)

// shunt is the router that this tree builds, driven by its own command.
type shunt struct {
	*network
	daemon *lab.Daemon
}

// newShunt starts a daemon in a lab.
func newShunt() (*rig, error) {
	if err := build(); err != nil {
		return nil, err
	}
	n, err := newNetwork("mpls-shunt")
	if err != nil {
		return nil, err
	}
	s := &shunt{network: n}
	// Labels are switched in XDP, which a veth does not get by itself before traffic has shown
	// what its peer is like.
	s.daemon, err = n.StartDaemon(context.Background(), n.router(), program, "--port", deviceNames[a], "--port", deviceNames[b], "--xdp", "on")
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	r, err := n.rig(s)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return r, nil
}

func (s *shunt) name() string { return "shunt" }

func (s *shunt) offers(c trial) string {
	if c.config == nil {
		return "the grammar has no words for it"
	}
	return ""
}

func (s *shunt) configure(c trial) error {
	for _, line := range c.setup {
		if err := s.ip(line); err != nil {
			return err
		}
	}
	return s.apply(withFence(c))
}

// withFence are all lines for a case: spaces, the fence's entries, its own.
func withFence(c trial) []string {
	in, out := fencePorts(c)
	spaces := c.spaces
	all := []string{}
	for i := range spaces {
		if spaces[i] == "" {
			spaces[i] = "0"
		}
		if spaces[i] != "off" {
			all = append(all, fmt.Sprintf("space set @%s %s", port(i), spaces[i]))
		}
	}
	return append(all,
		append([]string{
			nhlfe(fenceIn, fmt.Sprintf("swap %d %s", fenceOut, []string{toA, toB}[out])),
			ilm(fenceIn, fmt.Sprintf("space %s nhlfe %d", strings.Fields(spaces[in])[0], fenceIn)),
		}, c.config...)...)
}

func (s *shunt) refusals(c trial) []string { return c.refused }

func (s *shunt) refuse(_ trial, line string) error {
	err := s.apply([]string{line})
	if err == nil {
		_ = s.apply(undone([]string{line})) // what it made may be none of its own
	}
	return err
}

func (s *shunt) reset(c trial) error {
	defer s.undoIP(c.setup)
	return s.apply(undone(withFence(c)))
}

// undone are the lines that take away what others made: what refers first, in the opposite
// order of the making. What lines themselves took away is not there any more.
func undone(lines []string) (all []string) {
	var last [4][]string
	for _, line := range lines {
		w := strings.Fields(line)
		class := map[string]int{"ilm": 0, "ftn": 0, "route": 0, "nhlfe": 1, "map": 2, "space": 3}[w[0]]
		key := strings.Join(append([]string{w[0], "del"}, w[2:2+keyWords(w)]...), " ")
		switch {
		case w[0] == "space":
			last[class] = append(last[class], "space set "+w[2]+" off")
		case w[1] == "del":
			last[class] = slices.DeleteFunc(last[class], func(l string) bool { return l == key })
		default:
			last[class] = append([]string{key}, last[class]...)
		}
	}
	return slices.Concat(last[:]...)
}

// keyWords are how many words behind the verb say which entry it is.
func keyWords(w []string) int {
	n := 1
	for w[0] == "ilm" && len(w) > 2+n+1 && (w[2+n] == "space" || w[2+n] == "tc") {
		n += 2
	}
	return n
}

// apply makes a transaction of lines.
func (s *shunt) apply(lines []string) error {
	_, err := s.run(s.names(strings.Join(lines, "\n"))+"\n", "mpls", "apply", "-")
	return err
}

// run runs a client command in the router. An error is what it wrote to stderr, which the
// command contract has in one line.
func (s *shunt) run(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := s.router().Command(ctx, program, append([]string{"--state", s.State(), "--bpffs", s.BPFFS()}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		words := strings.TrimSpace(errs.String())
		if strings.Contains(words, "\n") {
			return "", fmt.Errorf("%w: %q is more than one line", err, words)
		}
		return "", errors.New(words)
	}
	return out.String(), nil
}

func (s *shunt) counters() (map[string]uint64, error) {
	text, err := s.run("", "mpls", "stats", "--json")
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		return nil, fmt.Errorf("shunt mpls stats --json: %w", err)
	}
	return flatten(tree), nil
}

// stages are the frames that came, by reason: each labelled one has one.
func (s *shunt) stages() (map[string]uint64, error) {
	text, err := s.run("", "status", "--json")
	if err != nil {
		return nil, err
	}
	var status struct{ Counters map[string]map[string]uint64 }
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, fmt.Errorf("shunt status --json: %w", err)
	}
	reasons := map[string]uint64{notMPLS: status.Counters["xdp"]["not_ip"]}
	maps.Copy(reasons, status.Counters["mpls"])
	return reasons, nil
}

// notMPLS are frames of another EtherType than 0x8847 that are no IP either.
const notMPLS = "not_mpls"

func (s *shunt) close() error { return s.network.Close() }

// perf is what begins the names of RFC 3813.
var perf = strings.NewReplacer("mplsInterfacePerf", "", "mplsInSegmentPerf", "", "mplsOutSegmentPerf", "")

// flatten gives each number of `shunt mpls stats --json` a name: of rows, by what tells
// them from others. Reasons are those of the platform, which is all ports.
func flatten(stats map[string]any) map[string]uint64 {
	flat := map[string]uint64{}
	rows := func(list string, key func(row map[string]any) string) {
		all, _ := stats[list].([]any)
		for _, r := range all {
			row, _ := r.(map[string]any)
			for name, value := range row {
				if n, ok := value.(float64); ok {
					flat[key(row)+"/"+perf.Replace(name)] = uint64(n)
				}
			}
			if reasons, _ := row["reasons"].(map[string]any); row["name"] == "platform" {
				for why, value := range reasons {
					n, _ := value.(float64)
					flat[dropped(why)] = uint64(n)
				}
			}
		}
	}
	rows("interfaces", func(row map[string]any) string {
		name := fmt.Sprint(row["name"])
		if at := slices.Index(deviceNames[:], name); at >= 0 {
			name = "@" + port(at).String()
		}
		return "interface/" + name
	})
	rows("in_segments", func(row map[string]any) string { return fmt.Sprintf("in/%.0f/%.0f", row["space"], row["label"]) })
	rows("out_segments", func(row map[string]any) string { return fmt.Sprintf("out/%.0f", row["nhlfe"]) })
	return flat
}
