// SPDX-License-Identifier: Apache-2.0

// Package watch holds the alert rules and the dashboard to what the daemon gives.
//
//	go test ./packaging -promtool PATH    also has promtool fire and clear each alert
package watch

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
)

var promtool = flag.String("promtool", "", "path of promtool, of Debian's package prometheus")

var metric = regexp.MustCompile(`\bshunt_[a-z_]+\b`)

// TestWatchedMetricsExist: rules, dashboard and docs name what the daemon gives, and nothing else; and
// every metric but those that only describe is watched by one of them.
func TestWatchedMetricsExist(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile("../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	given := metric.FindAllString(read("internal/export/testdata/metrics.golden"), -1)
	given = append(given, "shunt_heartbeat_age_seconds", "shunt_repeated_packets") // the last one of the recording rule's name
	told := map[string]bool{}
	for _, path := range []string{"packaging/prometheus/shunt.rules.yml", "packaging/grafana/shunt.json", "docs/monitoring.md"} {
		found := metric.FindAllString(read(path), -1)
		if len(found) < 10 {
			t.Errorf("%s names %d metrics", path, len(found))
		}
		for _, name := range found {
			told[name] = true
			if !slices.Contains(given, name) {
				t.Errorf("%s names %s, which the daemon does not give", path, name)
			}
		}
	}
	for _, name := range given {
		if !told[name] {
			t.Errorf("nobody is told of %s", name)
		}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read("packaging/grafana/shunt.json")), &board); err != nil || len(board.Panels) == 0 {
		t.Fatalf("the dashboard: %v", err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			if !regexp.MustCompile(`\b(shunt|process)_`).MatchString(target.Expr) {
				t.Errorf("panel %s asks for %q", p.Title, target.Expr)
			}
		}
	}
}

// TestAlerts: each alert is tested before, while and after it fires; promtool runs these tests.
func TestAlerts(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("prometheus/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read("shunt.rules.yml"), -1)
	for _, m := range alerts {
		cases := regexp.MustCompile(`alertname: `+m[1]+`, exp_alerts: \[(.)`).FindAllStringSubmatch(read("shunt.rules.test.yml"), -1)
		if len(cases) != 3 || cases[0][1] != "]" || cases[1][1] != "{" || cases[2][1] != "]" {
			t.Errorf("%s is not tested before, while and after it fires: %q", m[1], cases)
		}
	}
	if len(alerts) < 5 {
		t.Errorf("only %d alerts", len(alerts))
	}
	if *promtool == "" {
		return
	}
	for _, args := range [][]string{{"check", "rules", "shunt.rules.yml"}, {"test", "rules", "shunt.rules.test.yml"}} {
		cmd := exec.Command(*promtool, args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, out)
		}
	}
}
