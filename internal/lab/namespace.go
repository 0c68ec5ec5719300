// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// NS is one network namespace of a lab.
type NS struct {
	name string
}

// Name is what `ip netns exec` takes.
func (n *NS) Name() string { return n.name }

// quiet keeps a namespace from sending frames that nobody asked for, and from
// rules that a test did not set: no duplicate address detection (it needs both
// the value for all and the one per device), no router solicitations, no
// redirects. Link-local addresses stay: a router that forwards has no other
// source for its neighbour solicitations (ndisc_send_ns).
var quiet = [][2]string{
	{"net.ipv6.conf.all.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_dad", "0"},
	{"net.ipv6.conf.all.accept_ra", "0"},
	{"net.ipv6.conf.default.accept_ra", "0"},
	{"net.ipv6.conf.default.autoconf", "0"},
	{"net.ipv6.conf.default.router_solicitations", "0"},
	{"net.ipv4.conf.all.send_redirects", "0"},
	{"net.ipv4.conf.default.send_redirects", "0"},
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
}

// Namespaces makes one namespace per role, with lo up and without traffic of
// its own. Their names are the lab's with the role behind it.
func (l *Lab) Namespaces(roles ...string) ([]*NS, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var made []*NS
	var batch strings.Builder
	for _, role := range roles {
		n := &NS{name: l.record.Prefix + "-" + role}
		made = append(made, n)
		l.record.Namespaces = append(l.record.Namespaces, n.name)
		fmt.Fprintf(&batch, "netns add %s\n", n.name)
	}
	if err := l.save(); err != nil {
		return nil, err
	}
	if err := ip("", batch.String()); err != nil {
		return nil, err
	}
	for _, n := range made {
		for _, s := range quiet {
			if err := n.Sysctl(s[0], s[1]); err != nil {
				return nil, err
			}
		}
		if err := n.IP("link set lo up"); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// NS finds a namespace of the lab by its role.
func (l *Lab) NS(role string) (*NS, error) {
	name := l.record.Prefix + "-" + role
	if inode(filepath.Join("/run/netns", name)) == 0 {
		return nil, fmt.Errorf("lab: no namespace %s", name)
	}
	return &NS{name: name}, nil
}

// Do calls f inside the namespace. Goroutines that f starts are outside it. f
// runs on a thread of its own, which is thrown away if f locked it again (for
// instance after changing its CPU affinity), or if the way back fails.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := fmt.Errorf("lab: a function in namespace %s did not return", n.name)
		defer func() { done <- err }() // also if f calls runtime.Goexit, as t.Fatal does
		runtime.LockOSThread()         // without an unlock the thread ends with this goroutine
		back, enterErr := enter(filepath.Join("/run/netns", n.name))
		if enterErr != nil {
			err = fmt.Errorf("lab: enter namespace %s: %w", n.name, enterErr)
			return
		}
		err = f()
		if back() == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-done
}

// enter moves this thread into a namespace; back returns it.
func enter(path string) (back func() error, err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	target, err := os.Open(path)
	if err != nil {
		home.Close()
		return nil, err
	}
	defer target.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		home.Close()
		return nil, err
	}
	return func() error {
		defer home.Close()
		return unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
	}, nil
}

// Command is a command to be run inside the namespace, with /sys showing its
// devices. The lab's bpffs is at the same place as outside. ctx kills it.
func (n *NS) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// ip execs in place: the process is the command itself, not a parent of it.
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.name, name}, args...)...)
}

// Run runs a command inside the namespace and returns what it wrote to stdout.
// An error names the command and what it wrote to stderr.
func (n *NS) Run(args ...string) (string, error) {
	return run(n.Command(context.Background(), args[0], args[1:]...), "", strings.Join(args, " "))
}

// IP runs lines of the ip command in one batch, for instance "route add ...".
func (n *NS) IP(lines ...string) error {
	return ip(n.name, strings.Join(lines, "\n")+"\n")
}

// NFT adds a ruleset, in nft's own language, as one transaction.
func (n *NS) NFT(ruleset string) error {
	cmd := n.Command(context.Background(), "nft", "-f", "-")
	_, err := run(cmd, ruleset, "nft -f -")
	return err
}

// ServeTCP lets a function handle each TCP connection to an address of the namespace, in a
// goroutine, and closes it then. After stop no more are accepted.
func (n *NS) ServeTCP(at netip.AddrPort, handle func(*net.TCPConn)) (stop func() error, err error) {
	var l *net.TCPListener
	err = n.Do(func() (err error) { // a socket stays in the namespace that it was made in
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return l.Close, nil
}

// Sysctl sets a value of the namespace. The key is written with dots or, where
// a device name holds dots, with slashes.
func (n *NS) Sysctl(key, value string) error {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	return n.Do(func() error {
		// The directory /proc/sys/net is that of the thread which opens it.
		err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
		if err != nil {
			return fmt.Errorf("lab: sysctl %s=%s in %s: %w", key, value, n.name, err)
		}
		return nil
	})
}

// ip runs a batch, inside the namespace unless it is "".
func ip(namespace, batch string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-n", namespace}, args...)
	}
	_, err := run(exec.Command("ip", args...), batch, "ip batch: "+strings.TrimSpace(batch))
	return err
}

// run feeds a command and collects its output; what names it in the error.
func run(cmd *exec.Cmd, stdin, what string) (string, error) {
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("lab: %w; install the packages iproute2, nftables and ethtool", err)
	}
	if err != nil {
		return out.String(), fmt.Errorf("lab: %s: %w: %s", oneLine(what, 200), err, oneLine(errs.String(), 300))
	}
	return out.String(), nil
}

// oneLine makes an error's part out of a text of many lines.
func oneLine(text string, limit int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; ")
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return text
}
