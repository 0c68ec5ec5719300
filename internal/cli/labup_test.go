// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// up makes a lab, has it removed at the end, and returns what was said of it.
func up(t *testing.T, name string, make func(*env) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := make(&env{out: &out, err: &out}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	return out.String()
}

// The lab stands after the command has ended, with tables, and does what the page says of it: the
// frame that is to be copied out of it goes through the router and is counted.
func TestLSRUp(t *testing.T) {
	name := fmt.Sprintf("lsrup%d", os.Getpid())
	said := up(t, name, func(e *env) error { return e.lsrUp(t.Context(), name) })
	l, err := lab.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.NS("c")
	if err != nil {
		t.Fatal(err)
	}
	begin := strings.Index(said, "  ip netns exec "+client.Name()+" python3")
	if begin < 0 {
		t.Fatalf("no frame to send in:\n%s", said)
	}
	script, _, _ := strings.Cut(said[begin:], "'\n\n")
	// as it stands there: whoever copies it copies the spaces, too
	if words, err := exec.Command("sh", "-c", script+"'").CombinedOutput(); err != nil {
		t.Fatalf("%s'\n%v: %s", script, err, words)
	}
	daemon := api.NewClient(l.State() + "/api.sock")
	stats, err := daemon.MPLSStats(context.Background(), api.MPLSFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats.InSegments {
		want := map[uint32]uint64{100: 1}[s.Label]
		if s.Packets != want || s.Errors+s.Discards > 0 {
			t.Errorf("label %d: %+v, want %d packets", s.Label, s, want)
		}
	}
	for _, words := range []string{"mpls ilm --state " + l.State(), "lab lsr down", "ip netns exec " + client.Name()} {
		if !strings.Contains(said, words) {
			t.Errorf("no %q in:\n%s", words, said)
		}
	}
}

// The hosts of the chain reach each other, by the addresses that the page names.
func TestChainUp(t *testing.T) {
	name := fmt.Sprintf("chainup%d", os.Getpid())
	said := up(t, name, func(e *env) error {
		return e.chainUp(t.Context(), lab.ChainOptions{Name: name, Kept: true, Hops: 2, Routes: 10})
	})
	l, err := lab.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range pings(said) {
		words := strings.Fields(line)
		host, err := l.NS("a")
		if err != nil || words[3] != host.Name() {
			t.Fatalf("%v: %s", err, line)
		}
		if out, err := host.Run("ping", "-n", "-c", "3", "-i", "0.01", "-W", "2", words[len(words)-1]); err != nil || !strings.Contains(out, "ttl=62 ") {
			t.Errorf("ping %d: %v: %s", i, err, out)
		}
	}
	for _, words := range []string{"mpls ilm --state " + l.StateAt("r2"), "lab chain down"} {
		if !strings.Contains(said, words) {
			t.Errorf("no %q in:\n%s", words, said)
		}
	}
	if len(pings(said)) != 2 {
		t.Errorf("no two pings in:\n%s", said)
	}
}

// pings are the lines that ping.
func pings(said string) (lines []string) {
	for line := range strings.Lines(said) {
		if strings.Contains(line, " ping ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
