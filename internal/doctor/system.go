// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/kernel"
)

// floor checks the floor: tcx and kernel context casts came with Linux 6.6 and 6.2,
// queries for XDP features with 6.3.
func floor(r kernel.Release) api.Check {
	if !r.AtLeast(6, 6) {
		return fail("kernel", fmt.Sprintf("Linux %s is older than 6.6", r), "boot Linux 6.6 or newer")
	}
	return ok("kernel", "Linux %s", r)
}

// rights checks the capabilities without which nothing can be loaded or attached.
func rights(inside bool) api.Check {
	if inside {
		return ok("rights", "the daemon had what it takes to start, and keeps what it takes to go on")
	}
	missing, err := kernel.MissingRights()
	switch {
	case err != nil:
		return warn("rights", err.Error(), "run as root")
	case len(missing) > 0:
		return fail("rights", "not there: "+strings.Join(missing, ", "), "run as root")
	}
	return ok("rights", "enough to load and attach programs")
}

// system is the file system that tells of the kernel; tests give it another root.
type system struct{ root string }

func (s system) path(name string) string { return filepath.Join(s.root, name) }

// sysctl reads a number below /proc/sys.
func (s system) sysctl(name string) (int, error) {
	b, err := os.ReadFile(s.path("proc/sys/" + strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (s system) btf() api.Check {
	if _, err := os.Stat(s.path("sys/kernel/btf/vmlinux")); err != nil {
		return fail("btf", "the kernel does not describe its types (no /sys/kernel/btf/vmlinux)",
			"boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, and see that sysfs is mounted")
	}
	return ok("btf", "the kernel describes its types")
}

// jit reads a switch that only the first network namespace shows (net_core_table).
func (s system) jit() api.Check {
	on, err := s.sysctl("net.core.bpf_jit_enable")
	switch {
	case err != nil:
		return ok("jit", "cannot be read from here: another network namespace than the first, or no right to read it")
	case on == 0:
		return warn("jit", "BPF programs are interpreted, which is several times slower", "sysctl -w net.core.bpf_jit_enable=1")
	case on > 1:
		return warn("jit", "the BPF compiler is in its debugging mode", "sysctl -w net.core.bpf_jit_enable=1")
	}
	return ok("jit", "BPF programs are compiled")
}

// lockdown: "confidentiality" takes helpers from programs (LOCKDOWN_BPF_READ_KERNEL); whether shunt's load
// all the same is tried, not guessed. "integrity", which Secure Boot switches on, takes none.
func (s system) lockdown() api.Check {
	modes, err := os.ReadFile(s.path("sys/kernel/security/lockdown"))
	switch {
	case err == nil && strings.Contains(string(modes), "[confidentiality]"):
		return warn("lockdown", "confidentiality: it may keep programs from loading; \"programs\" says whether it does", "if it does, boot with lockdown=integrity")
	case err == nil && strings.Contains(string(modes), "[integrity]"):
		return ok("lockdown", "integrity, as with Secure Boot: no hindrance")
	}
	return ok("lockdown", "none")
}

// bpffs looks at the nearest directory that is there: the daemon makes its own.
func (s system) bpffs(dir string) api.Check {
	at := s.path(dir)
	var st unix.Statfs_t
	err := unix.Statfs(at, &st)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &st)
	}
	if err != nil {
		return fail("bpffs", fmt.Sprintf("%s: %v", at, err), "run as root, or name another directory with --bpffs")
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fail("bpffs", fmt.Sprintf("%s is in no BPF file system", dir),
			"mount one: mount -t bpf bpf /sys/fs/bpf, or name another directory with --bpffs")
	}
	return ok("bpffs", "%s can hold the programs", dir)
}

// forwarding: a host that forwards nothing has no use for a fast path.
func (s system) forwarding() (checks []api.Check) {
	for _, f := range []struct{ name, sysctl string }{
		{"IPv4", "net.ipv4.ip_forward"},
		{"IPv6", "net.ipv6.conf.all.forwarding"},
	} {
		on, err := s.sysctl(f.sysctl)
		switch {
		case err != nil:
			checks = append(checks, ok("forwarding", "%s is not there", f.name))
		case on == 0:
			checks = append(checks, warn("forwarding", f.name+" is not forwarded", fmt.Sprintf("sysctl -w %s=1", f.sysctl)))
		default:
			checks = append(checks, ok("forwarding", "%s is forwarded", f.name))
		}
	}
	return checks
}

// conntrack says how TCP's window check stands, and whether the table is about full:
// connections that find no room are dropped by the kernel, with shunt or without.
func (s system) conntrack() []api.Check {
	liberal, err := s.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")
	if err != nil {
		return []api.Check{ok("conntrack", "not there: flows are repeated without it")}
	}
	checks := []api.Check{ok("conntrack", "window check on: switched off for each TCP connection that is repeated")}
	if liberal != 0 {
		checks[0] = ok("conntrack", "window check off for all connections (nf_conntrack_tcp_be_liberal)")
	}
	if on, err := s.sysctl("net.netfilter.nf_conntrack_acct"); err == nil && on != 0 {
		checks = append(checks, warn("accounting", "conntrack counts packets and bytes (nf_conntrack_acct), and does not see those that are repeated",
			"count with `shunt flows --json`, or exclude what must be counted ([[exclude]] in the configuration)"))
	}
	count, errCount := s.sysctl("net.netfilter.nf_conntrack_count")
	most, errMost := s.sysctl("net.netfilter.nf_conntrack_max")
	if errCount == nil && errMost == nil && most > 0 && count > most/10*9 {
		checks = append(checks, warn("conntrack", fmt.Sprintf("%d of %d connections are in use: new ones will be dropped", count, most),
			"raise net.netfilter.nf_conntrack_max"))
	}
	return checks
}
