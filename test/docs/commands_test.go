// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"shunt/internal/cli"
	"shunt/internal/lab"
)

// Commands in the pages stand in fenced blocks of two kinds:
//
//	```sh run    is run as it stands, in a lab's router with a living daemon
//	```sh        needs a real router, minutes or a clone: each shunt command in it, with its
//	             flags, is held against the program's help, each make target against the Makefile
//
// So are commands in the running text (`shunt flows --json`).

// block is a fenced block of shell commands.
type block struct {
	page string
	line int // of its first command
	run  bool
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

func blocks(t *testing.T) []block {
	t.Helper()
	var found []block
	for _, page := range pages(t) {
		var now *block
		for i, line := range strings.Split(read(t, page), "\n") {
			switch {
			case now != nil && line == "```":
				found = append(found, *now)
				now = nil
			case now != nil:
				now.text += line + "\n"
			case line == "```sh" || line == "```sh run":
				now = &block{page: page, line: i + 2, run: line == "```sh run"}
			}
		}
		if now != nil {
			t.Errorf("%s: a block is not closed", now)
		}
	}
	if len(found) < 5 {
		t.Fatalf("only %d blocks of commands found", len(found))
	}
	return found
}

var (
	comment   = regexp.MustCompile(`(^|\s)#.*`)
	separator = regexp.MustCompile(`\|\||&&|[|;>]`)
	inline    = regexp.MustCompile("`(shunt [a-z][^`]*|make [a-z-]+)`")
	target    = regexp.MustCompile(`(?m)^([a-z-]+):`)
)

func TestCommandsExist(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, b := range blocks(t) {
		for i, line := range strings.Split(b.text, "\n") {
			where := fmt.Sprintf("%s:%d", b.page, b.line+i)
			for _, command := range separator.Split(comment.ReplaceAllString(line, ""), -1) {
				checkCommand(t, where, command, targets)
			}
		}
	}
	for _, page := range pages(t) {
		for _, m := range inline.FindAllStringSubmatch(read(t, page), -1) {
			checkCommand(t, page, m[1], targets)
		}
	}
}

func checkCommand(t *testing.T, where, command string, targets map[string]bool) {
	t.Helper()
	words := strings.Fields(command)
	for len(words) > 0 && words[0] == "sudo" {
		words = words[1:]
	}
	switch {
	case len(words) > 1 && words[0] == "make":
		if !targets[words[1]] {
			t.Errorf("%s: make %s: the Makefile has no such target", where, words[1])
		}
	case len(words) > 1 && words[0] == "shunt":
		if err := checkShunt(words[1:]); err != nil {
			t.Errorf("%s: %s: %v", where, strings.TrimSpace(command), err)
		}
	}
}

// checkShunt holds a command against its help: is there such a command, does it take
// arguments if it is given some, has it these flags?
func checkShunt(words []string) error {
	var names []string
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			break
		}
		names = append(names, w)
	}
	help, usage := helpOf(names)
	known := 0
	for known < len(names) && strings.HasPrefix(usage+" ", "shunt "+strings.Join(names[:known+1], " ")+" ") {
		known++
	}
	takes := strings.Fields(strings.TrimSuffix(strings.TrimPrefix(usage, "shunt "+strings.Join(names[:known], " ")), "[flags]"))
	switch {
	case known == 0:
		return fmt.Errorf("no such command")
	case len(names) > known && len(takes) == 0:
		return fmt.Errorf("takes no argument %q", names[known])
	}
	for _, w := range words[len(names):] {
		name, _, _ := strings.Cut(w, "=")
		if strings.HasPrefix(name, "--") && !regexp.MustCompile(name+`\b`).MatchString(help) {
			return fmt.Errorf("no flag %s", name)
		}
	}
	return nil
}

// helpOf asks a command for help, and finds the line that tells its use.
func helpOf(names []string) (help, usage string) {
	var out bytes.Buffer
	cli.Run(append(append([]string{}, names...), "--help"), &out, &out)
	_, rest, _ := strings.Cut(out.String(), "Usage:\n")
	usage, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
	return out.String(), usage
}

// TestTheCheckBites: a check that finds nothing wrong in these would find nothing at all.
func TestTheCheckBites(t *testing.T) {
	for _, wrong := range []string{"nonesuch", "flows --nonesuch", "pause now", "status --sort bytes"} {
		if checkShunt(strings.Fields(wrong)) == nil {
			t.Errorf("shunt %s passes", wrong)
		}
	}
	for _, right := range []string{"flows --sort bytes --limit 5", "explain A B/tcp --json", "doctor eth0", "run --port=eth0"} {
		if err := checkShunt(strings.Fields(right)); err != nil {
			t.Errorf("shunt %s: %v", right, err)
		}
	}
}

// TestCommandsRun runs the blocks that say so, one after the other, in the router of a lab.
func TestCommandsRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("labs need root: run the tests as root")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", program, "./cmd/shunt")
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	firewall, err := lab.Firewall(lab.FirewallOptions{Name: "docs", NAT: lab.NATMasquerade})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { firewall.Close() })
	router := firewall.LAN.NS
	daemon, err := firewall.StartDaemon(context.Background(), router, program, "--port", "lan", "--port", "wan")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Stop() })
	if _, err := firewall.Client.NS.Run("ping", "-n", "-c", "20", "-i", "0.01", "-W", "1", firewall.Server.V4.Addr().String()); err != nil {
		t.Fatal(err)
	}

	// The pages say `shunt`; here its places are the lab's.
	script := fmt.Sprintf("#!/bin/sh\nexec %s --state %s --bpffs %s \"$@\"\n", program, daemon.State, daemon.BPFFS)
	if err := os.WriteFile(filepath.Join(dir, "shunt"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range blocks(t) {
		if !b.run {
			continue
		}
		ran++
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		cmd := router.Command(ctx, "bash", "-euo", "pipefail", "-c", b.text)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%s", b, err, out)
		} else if len(bytes.TrimSpace(out)) == 0 && !strings.Contains(b.text, "pause") {
			t.Errorf("%s says nothing", b)
		}
		t.Logf("%s\n%s%s", b, b.text, out)
	}
	if ran < 3 {
		t.Errorf("only %d blocks were run", ran)
	}
}
