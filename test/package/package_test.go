// SPDX-License-Identifier: Apache-2.0

// Package packages tests the Debian package.
//
//	go test ./test/package           builds it and looks inside
//	go test -v ./test/package -full  make test-package: also builds it twice and compares, tests the alert
//	                                 rules, and installs it in a clean Debian under systemd
//
// check.sh is the life of that installation in the guest of internal/vm: install, configure, start, reload,
// crash, hang, upgrade, stop and purge, with a ping through the router that must not lose a packet. Limit:
// systemd is the first process of its own namespaces, in a chroot, on Debian's kernel 6.12; no machine boots.
package packages

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"shunt/internal/vm"
)

var (
	full   = flag.Bool("full", false, "build twice, and live in a clean Debian")
	parts  = flag.String("parts", "looks reload crash hang upgrade stop remove", "with -full: what check.sh does after the start")
	suites = flag.String("suites", "bookworm", "with -full: the releases of Debian, with commas")
)

const top = "../.."

// run runs a command in a directory and returns what it prints.
func run(t *testing.T, dir string, env []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &errs)
	}
	return strings.TrimSpace(string(out))
}

// build packs this tree under a version.
func build(t *testing.T, dir, version string) (deb string) {
	t.Helper()
	program := filepath.Join(dir, "shunt")
	run(t, top, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/shunt")
	lines := strings.Split(run(t, top, []string{"VERSION=" + version, "COMPRESS=none"}, "packaging/deb/build.sh", program, dir), "\n")
	return lines[len(lines)-1]
}

// TestContents: the package holds each file where an operator looks for it.
func TestContents(t *testing.T) {
	deb := build(t, t.TempDir(), "1.2~test")
	if base := filepath.Base(deb); !strings.HasPrefix(base, "shunt_1.2~test_") {
		t.Errorf("the package is %s", base)
	}
	root := t.TempDir()
	run(t, ".", nil, "dpkg-deb", "-R", deb, root)
	for name, mode := range map[string]os.FileMode{
		"usr/sbin/shunt": 0o755, "etc/shunt/shunt.toml": 0o644,
		"usr/lib/systemd/system/shunt.service": 0o644, "usr/lib/systemd/system/shunt-fastpath.service": 0o644,
		"usr/share/man/man8/shunt.8.gz": 0o644, "usr/share/man/man8/shunt-config-check.8.gz": 0o644, "usr/share/man/man5/shunt.toml.5.gz": 0o644,
		"usr/share/bash-completion/completions/shunt": 0o644, "usr/share/zsh/vendor-completions/_shunt": 0o644,
		"usr/share/fish/vendor_completions.d/shunt.fish": 0o644, "usr/share/doc/shunt/copyright": 0o644,
		"usr/share/shunt/prometheus/shunt.rules.yml": 0o644, "usr/share/shunt/grafana/shunt.json": 0o644,
		"usr/share/doc/shunt/changelog.gz": 0o644, "usr/share/doc/shunt/config.md": 0o644,
		"DEBIAN/postinst": 0o755, "DEBIAN/prerm": 0o755, "DEBIAN/postrm": 0o755, ".": 0o755,
	} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, want mode %o (%v)", name, info, mode, err)
		}
	}
	conffiles, _ := os.ReadFile(filepath.Join(root, "DEBIAN/conffiles"))
	if string(conffiles) != "/etc/shunt/shunt.toml\n" {
		t.Errorf("conffiles: %q", conffiles)
	}
	if out := run(t, root, nil, "./usr/sbin/shunt", "version"); !strings.HasPrefix(out, "shunt ") {
		t.Errorf("the program says %q", out)
	}
	for _, script := range []string{"DEBIAN/postinst", "DEBIAN/prerm", "DEBIAN/postrm"} {
		run(t, root, nil, "sh", "-n", script)
	}
	run(t, root, nil, "bash", "-n", "usr/share/bash-completion/completions/shunt")
	run(t, root, nil, "md5sum", "--quiet", "-c", "DEBIAN/md5sums")
	field := func(name string) string { return run(t, ".", nil, "dpkg-deb", "-f", deb, name) }
	if field("Version") != "1.2~test" || field("Depends") != "" {
		t.Errorf("version %q, depends on %q", field("Version"), field("Depends"))
	}
}

// TestReproducible: two clones in two directories give the same bytes.
func TestReproducible(t *testing.T) {
	if !*full {
		t.Skip("make test-package builds the package twice")
	}
	var sums []string
	for _, place := range []string{"a", "another/place"} {
		clone := filepath.Join(t.TempDir(), place)
		run(t, top, nil, "git", "clone", "-q", "--no-local", ".", clone)
		run(t, clone, nil, "make", "deb")
		sums = append(sums, run(t, filepath.Join(clone, "build"), nil, "sh", "-c", "sha256sum *.deb"))
	}
	if sums[0] != sums[1] {
		t.Errorf("two builds differ:\n%s\n%s", sums[0], sums[1])
	}
}

// TestAlerts: promtool finds the rules sound, and each alert fires where it should and clears.
func TestAlerts(t *testing.T) {
	if !*full {
		t.Skip("make test-package fetches promtool")
	}
	dir := cached(t, "promtool", func(fresh string) {
		run(t, ".", nil, "mkdir", fresh)
		run(t, fresh, nil, "apt-get", "-q", "download", "prometheus") // not installed: that would start a server
		run(t, fresh, nil, "sh", "-c", "dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb")
	})
	promtool := filepath.Join(dir, "usr/bin/promtool")
	rules := filepath.Join(top, "packaging/prometheus")
	run(t, rules, nil, promtool, "check", "rules", "shunt.rules.yml")
	run(t, rules, nil, promtool, "test", "rules", "shunt.rules.test.yml")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(rules, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read("shunt.rules.yml"), -1) {
		cases := regexp.MustCompile(`alertname: `+m[1]+`, exp_alerts: \[(.)`).FindAllStringSubmatch(read("shunt.rules.test.yml"), -1)
		if len(cases) != 3 || cases[0][1] != "]" || cases[1][1] != "{" || cases[2][1] != "]" {
			t.Errorf("%s is not tested before, while and after it fires: %q", m[1], cases)
		}
	}
}

// TestLife: what check.sh does.
func TestLife(t *testing.T) {
	if !*full {
		t.Skip("make test-package boots a Debian, which takes minutes")
	}
	for _, release := range strings.Split(*suites, ",") {
		t.Run(release, func(t *testing.T) { live(t, release) })
	}
}

func live(t *testing.T, release string) {
	share, root := t.TempDir(), filepath.Join(t.TempDir(), "deb")
	run(t, ".", nil, "dpkg-deb", "-R", build(t, t.TempDir(), "0.0.0~test"), root)
	for name, version := range map[string]string{"old.deb": "0.0.1~test", "new.deb": "0.0.2~test"} {
		run(t, root, nil, "sed", "-i", "s/^Version: .*/Version: "+version+"/", "DEBIAN/control")
		run(t, ".", nil, "dpkg-deb", "--root-owner-group", "-Znone", "-b", root, filepath.Join(share, name))
	}
	run(t, ".", nil, "cp", "check.sh", share)
	if err := os.WriteFile(filepath.Join(share, "parts"), []byte(*parts), 0o644); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := vm.Options{
		Command: []string{"bash", filepath.Join(here, "boot.sh"), debian(t, release)},
		CPUs:    2, MemoryMB: 3072, Timeout: 20 * time.Minute, Share: share,
		Modules: []string{"overlay", "veth", "nf_conntrack", "nft_ct", "nft_masq", "nf_conntrack_netlink"},
		Output:  &out, Progress: os.Stdout,
	}
	if testing.Verbose() {
		o.Output = io.MultiWriter(&out, os.Stdout)
	}
	code, err := vm.Run(t.Context(), o)
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if strings.Count(out.String(), "\nok: ") < 15 || strings.Contains(out.String(), "\nFAIL: ") || t.Failed() {
		t.Errorf("the guest's output:\n%s", &out)
	}
}

// debian is a directory with a release of Debian.
func debian(t *testing.T, release string) string {
	t.Helper()
	const packages = "systemd,systemd-sysv,dbus,iproute2,nftables,iputils-ping,man-db,bash-completion,procps,init-system-helpers"
	return cached(t, filepath.Join("debian", release), func(fresh string) {
		run(t, ".", nil, "mmdebstrap", "--variant=minbase", "--include="+packages, release, fresh)
	})
}

// cached is a directory in the user's cache, made once: whole, or not at all.
func cached(t *testing.T, name string, fill func(fresh string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "shunt", name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh := fmt.Sprintf("%s.%d", dir, os.Getpid())
	t.Cleanup(func() { os.RemoveAll(fresh) })
	fill(fresh)
	if err := os.Rename(fresh, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
