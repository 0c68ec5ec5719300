// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// toolsSuite is the first Debian whose xdp-tools have xdp-forward.
	toolsSuite = "trixie"
	// toolsProgram runs it with the libraries that it was built with.
	toolsProgram = `#!/bin/sh
root=$(dirname "$0")
lib=$root/usr/lib/x86_64-linux-gnu
export LIBXDP_OBJECT_PATH="$lib/bpf"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/sbin/xdp-forward" "$@"
`
)

// toolsPackages are xdp-tools and what xdp-forward is linked with.
var toolsPackages = []string{"xdp-tools", "libxdp1", "libbpf1", "libelf1t64", "zlib1g", "libzstd1", "libc6"}

// xdpTools makes sure that there is an xdp-forward, and returns the directory that PATH
// must have for it; "" if it is installed. Otherwise the packages of a newer Debian are
// downloaded from the mirror that apt uses, and unpacked into the user's cache.
func xdpTools(ctx context.Context, say func(format string, args ...any)) (dir string, err error) {
	for _, installed := range []string{"xdp-forward", "/usr/sbin/xdp-forward"} {
		if _, err := exec.LookPath(installed); err == nil {
			return "", nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("bench: nowhere to keep xdp-tools: %w", err)
	}
	dir = filepath.Join(cache, "shunt", "xdp-tools-"+toolsSuite)
	if _, err := os.Stat(filepath.Join(dir, "xdp-forward")); err == nil {
		return dir, nil
	}
	say("downloading xdp-tools of Debian %s\n", toolsSuite)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("bench: cache: %w", err)
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "part-")
	if err != nil {
		return "", fmt.Errorf("bench: cache: %w", err)
	}
	defer os.RemoveAll(part)
	if err := fetchTools(ctx, part); err != nil {
		return "", err
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return "", fmt.Errorf("bench: cache: %w", err)
	}
	if err := os.Rename(part, dir); err != nil && !errors.Is(err, os.ErrExist) { // or another was faster
		return "", fmt.Errorf("bench: cache: %w", err)
	}
	return dir, nil
}

// fetchTools fills a directory, with an apt that knows nothing but the one suite.
func fetchTools(ctx context.Context, dir string) error {
	uris, err := toolsRun(ctx, dir, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
	if err != nil {
		return err
	}
	if uris == "" {
		return errors.New("bench: apt has no mirror of Debian; install an xdp-tools with xdp-forward (1.5)")
	}
	apt := filepath.Join(dir, "apt")
	sources := filepath.Join(apt, "sources.list")
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(apt, sub), 0o755); err != nil {
			return fmt.Errorf("bench: cache: %w", err)
		}
	}
	line := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + strings.Fields(uris)[0] + " " + toolsSuite + " main\n"
	if err := os.WriteFile(sources, []byte(line), 0o644); err != nil {
		return fmt.Errorf("bench: cache: %w", err)
	}
	get := []string{"-q"}
	for _, option := range []string{"Dir::Etc::SourceList=" + sources, "Dir::Etc::SourceParts=/dev/null", "Dir::State::Lists=" + apt + "/lists",
		"Dir::Cache=" + apt, "APT::Sandbox::User=root", "Acquire::Languages=none"} {
		get = append(get, "-o", option)
	}
	if _, err := toolsRun(ctx, apt, "apt-get", append(slices.Clone(get), "update")...); err != nil {
		return err
	}
	if _, err := toolsRun(ctx, apt, "apt-get", append(append(get, "download"), toolsPackages...)...); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(apt, "*.deb"))
	if err != nil {
		return err
	}
	for _, p := range packages {
		if _, err := toolsRun(ctx, dir, "dpkg-deb", "-x", p, dir); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(apt); err != nil {
		return fmt.Errorf("bench: cache: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "xdp-forward"), []byte(toolsProgram), 0o755)
}

func toolsRun(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("bench: fetch xdp-tools: %s %s: %w: %s", name, args[0], err, tail(errs.String()))
	}
	return out.String(), nil
}
