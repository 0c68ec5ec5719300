// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func written(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shunt.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestSettings: each value is told with its default and with the line or flag that set it.
func TestSettings(t *testing.T) {
	name := written(t, `port = ["eth0"]
lease = "2s"
threshold = 7
flows = 4096

[mark]
mask = 0x3

[[exclude]]
from = "192.0.2.0/24"
proto = "udp"
port = "5060-5061"

[[exclude]]
proto = "89"
in = "lan*"

[police]
ttl = "1000/s"

[ports."eth0"]
xdp = "off"
`)
	got, err := Source{File: name, Flags: []Flag{{"port", "lan*"}, {"threshold", "9"}}}.Load()
	if err != nil {
		t.Fatal(err)
	}
	at := func(line string) string { return name + ":" + line }
	have := map[string]Setting{}
	var order []string
	for _, s := range got.Settings() {
		if s.From != "default" {
			order = append(order, s.Key)
			have[s.Key+" "+s.From] = s
		}
	}
	if diff := cmp.Diff([]string{"port", "threshold", "lease", "flows", "mark.mask", "exclude", "exclude", "police.ttl", "ports.eth0.xdp"}, order); diff != "" {
		t.Error(diff)
	}
	for _, want := range []Setting{
		{"port", `["eth0", "lan*"]`, "[]", at("1") + " and --port"},
		{"threshold", "9", "10", "--threshold"},
		{"lease", `"2s"`, `"4s"`, at("2")},
		{"mark.mask", "0x3", "0x1", at("7")},
		{"exclude", `{from = "192.0.2.0/24", proto = "udp", port = "5060-5061"}`, "[]", at("9")},
		{"exclude", `{proto = "89", in = "lan*"}`, "[]", at("14")},
		{"police.ttl", `"1000/s"`, "", at("19")},
		{"ports.eth0.xdp", `"off"`, "", at("22")},
	} {
		if diff := cmp.Diff(want, have[want.Key+" "+want.From]); diff != "" {
			t.Errorf("%s:\n%s", want.Key, diff)
		}
	}
	for _, s := range got.Settings() {
		if s.Key == "source_flows" && (s.Value != "1024" || s.Default != "1024" || s.From != "default") {
			t.Errorf("source_flows follows flows: %+v", s)
		}
	}
}

// TestSettingsNameEveryKey: a key of the file that Settings forgets is a value that nobody sees.
func TestSettingsNameEveryKey(t *testing.T) {
	e := Effective{Config: Default(), Read: "reference.toml"}
	if err := e.parse([]byte(Reference)); err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, s := range e.Settings() {
		told[s.Key] = true
	}
	for _, k := range e.keys {
		top, _, _ := strings.Cut(k.key(), ".")
		if !told[k.key()] && top != "exclude" && top != "include" && !hasBelow(told, k.key()) {
			t.Errorf("Settings do not name %s", k.key())
		}
	}
}

func hasBelow(told map[string]bool, table string) bool {
	for key := range told {
		if strings.HasPrefix(key, table+".") {
			return true
		}
	}
	return false
}

func TestChanged(t *testing.T) {
	read := func(text string) *Effective {
		e, err := Source{File: written(t, "port = [\"eth0\"]\n"+text)}.Load()
		if err != nil {
			t.Fatal(err)
		}
		return &e
	}
	for _, c := range []struct {
		old, next string
		want      []string
	}{
		{"", "", nil},
		{"lease = \"4s\"", "", nil}, // the default, written or not
		{"lease = \"2s\"", "[police]\nttl = \"9/s\"", []string{"lease", "police.ttl"}},
		{"offloads = \"switch\"", "offloads = \"keep\"", []string{"offloads"}},
		{"[police]\nttl = \"9/s\"", "[ports.eth0]\nxdp = \"off\"", []string{"police.ttl", "ports.eth0.xdp"}},
		{"[[exclude]]\nproto = \"tcp\"", "[[exclude]]\nproto = \"tcp\"\n[[exclude]]\nproto = \"udp\"", []string{"exclude"}},
	} {
		if diff := cmp.Diff(c.want, Changed(read(c.old), read(c.next))); diff != "" {
			t.Errorf("%q to %q:\n%s", c.old, c.next, diff)
		}
	}
}

// TestSourceErrors: what file and flags come to is told with the line, too.
func TestSourceErrors(t *testing.T) {
	for _, c := range []struct {
		text  string
		flags []Flag
		want  string // behind the file's name
	}{
		{"", nil, ": no port: name one with --port"},
		{"port = []", nil, ":1: no port: name one with --port"},
		{"port = [\"eth0\"]\n\n[ports.eth1]\nxdp = \"off\"", nil, `:3: [ports."eth1"] is about no port`},
		{"port = [\"eth0\"]\nflows = 1024\nsource_flows = 2048", nil, ":3: source_flows 2048: allowed is 0, or from"},
		{"port = [\"eth0\"]\nlease = \"0s\"", nil, `:2: lease = "0s": allowed is a duration`},
	} {
		name := written(t, c.text)
		_, err := Source{File: name, Flags: c.flags}.Load()
		var bad *Error
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), name+c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, name+c.want)
		}
	}
	name := written(t, `port = ["eth0"]`)
	_, err := Source{File: name, Flags: []Flag{{"lease", "1h"}}}.Load()
	var flag *FlagError
	if !errors.As(err, &flag) || !strings.HasPrefix(err.Error(), `--lease "1h": allowed`) {
		t.Errorf("a wrong flag: %v", err)
	}
}

// TestDefaultFile: it is read where no other is named, and need not be there.
func TestDefaultFile(t *testing.T) {
	name := written(t, "port = [\"eth0\"]\nlease = \"9s\"")
	flags := []Flag{{"port", "eth1"}}
	for file, want := range map[string]string{name: `"9s" ` + name + ":2", name + ".none": `"4s" default`} {
		got, err := Source{Flags: flags}.load(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got.Settings() {
			if s.Key == "lease" && s.Value+" "+s.From != want {
				t.Errorf("%s: lease is %+v, want %s", file, s, want)
			}
		}
	}
	if _, err := (Source{Flags: flags}).load(filepath.Dir(name)); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a default file that cannot be read: %v", err)
	}
}
