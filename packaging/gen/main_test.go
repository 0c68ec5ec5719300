// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/cli"
	"shunt/internal/config"
)

// TestSettings: the installed file changes no default, and holds the whole reference.
func TestSettings(t *testing.T) {
	got, err := config.Parse("shunt.toml", []byte(settings()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config.Default(), got); diff != "" {
		t.Errorf("the installed file is not the default (-default +file):\n%s", diff)
	}
	_, body, _ := strings.Cut(config.Reference, "\n\n")
	if !strings.HasSuffix(regexp.MustCompile(`(?m)^#([^# \n])`).ReplaceAllString(settings(), "$1"), body) {
		t.Error("without the # in front of settings the installed file is not the reference")
	}
}

// TestManual: each command has a page with its text, in requests of man(7).
func TestManual(t *testing.T) {
	pages, err := manual(time.Unix(1_800_000_000, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string]string{
		"man8/shunt.8": "at a fraction of the cost", "man8/shunt-run.8": "etc/shunt/shunt.toml", "man8/shunt-config-show.8": "default",
		"man8/shunt-mpls-nhlfe.8": "NHLFE", "man5/shunt.toml.5": `\[\[exclude\]\]`,
	} {
		if !regexp.MustCompile(words).Match(pages[name]) {
			t.Errorf("%s does not have %q:\n%.300s", name, words, pages[name])
		}
	}
	if !bytes.Contains(pages["man8/shunt-run.8"], []byte(`"Jan 2027"`)) {
		t.Error("pages do not have the date that was given")
	}
	if len(pages) < 25 {
		t.Errorf("only %d pages", len(pages))
	}
	for name, page := range pages {
		for n, line := range strings.Split(string(page), "\n") {
			if len(line) > 0 && line[0] == '.' && !regexp.MustCompile(`^\.(TH|SH|SS|PP|B|BR|nf|fi|EX|EE|RS|RE|TP|IP|nh)\b`).MatchString(line) {
				t.Errorf("%s:%d: %q is a request that pages here do not use", name, n+1, line)
			}
		}
	}
}

// TestCompletion: the program answers what the scripts ask on <TAB>.
func TestCompletion(t *testing.T) {
	files, err := completion()
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range files {
		if !bytes.Contains(script, []byte("__complete")) {
			t.Errorf("%s does not ask the program", name)
		}
	}
	check := exec.Command("bash", "-n")
	check.Stdin = bytes.NewReader(files["usr/share/bash-completion/completions/shunt"])
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("bash: %v: %s", err, out)
	}
	const nothing, files0, ext = ":4", ":0", ":8"
	for _, c := range []struct {
		words string
		want  string // in the answer
		how   string
	}{
		{"sta", "status\t", nothing}, {"config ", "check\t", nothing}, {"run --conf", "--config\t", nothing},
		{"run --config ", "toml", ext}, {"config check ", "", files0}, {"status ", "", nothing}, {"mpls apply ", "", files0}, {"mpls il", "ilm\t", nothing},
	} {
		var out, errs bytes.Buffer
		cli.Run(append([]string{"__complete"}, strings.Split(c.words, " ")...), &out, &errs)
		if !strings.Contains(out.String(), c.want) || !strings.HasSuffix(strings.TrimSpace(out.String()), c.how) {
			t.Errorf("shunt %s<TAB>: %q, want %q and %s", c.words, &out, c.want, c.how)
		}
	}
	var out, errs bytes.Buffer
	cli.Run([]string{"__complete", "run", "--port", ""}, &out, &errs)
	if entries, _ := os.ReadDir("/sys/class/net"); len(entries) > 1 && strings.Count(out.String(), "\n") < len(entries) {
		t.Errorf("run --port <TAB>: %q", &out)
	}
}
