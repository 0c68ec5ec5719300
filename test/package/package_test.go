// SPDX-License-Identifier: Apache-2.0

// Package packages tests the Debian package.
//
//	go test ./test/package           builds it and looks inside
//	go test -v ./test/package -full  also builds it twice and compares
package packages

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var full = flag.Bool("full", false, "build twice")

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
		t.Skip("-full builds the package twice")
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
