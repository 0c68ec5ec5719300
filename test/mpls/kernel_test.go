package mpls

import (
	"errors"
	"fmt"
	"os/exec"
)

// linux is the kernel's own MPLS, told by iproute2. It has one label space, no TC, and
// no counters by label.
type linux struct{ *network }

func newLinux() (*rig, error) {
	_ = exec.Command("modprobe", "-a", "mpls_router", "mpls_iptunnel").Run() // built in, or the next line tells
	n, err := newNetwork("mpls-kernel")
	if err != nil {
		return nil, err
	}
	k := &linux{n}
	if err := n.router().Sysctl("net.mpls.platform_labels", "1048576"); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; the kernel needs the module mpls_router", err), n.Close())
	}
	r, err := n.rig(k)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return r, nil
}

func (k *linux) name() string { return "kernel" }

func (k *linux) offers(c trial) string {
	if c.kernel == nil {
		return "`ip -f mpls route` has no words for it"
	}
	return ""
}

func (k *linux) configure(c trial) error {
	for i, space := range c.spaces {
		input := "1"
		if space == "off" {
			input = "0"
		}
		if err := k.ip(fmt.Sprintf("sysctl net/mpls/conf/@%s/input=%s", port(i), input)); err != nil {
			return err
		}
	}
	for _, line := range k.lines(c) {
		if err := k.ip(line); err != nil {
			return err
		}
	}
	return nil
}

// lines are a case's, and those of the fence.
func (k *linux) lines(c trial) []string {
	_, out := fencePorts(c)
	return append([]string{route(fenceIn, fmt.Sprintf("as %d via inet %s dev @%s", fenceOut, host4[out], out))}, c.kernel...)
}

func (k *linux) refusals(c trial) []string { return c.kernelRefused }

func (k *linux) refuse(_ trial, line string) error {
	err := k.ip(line)
	if err == nil {
		k.undoIP([]string{line})
	}
	return err
}

func (k *linux) reset(c trial) error                  { k.undoIP(k.lines(c)); return nil }
func (k *linux) counters() (map[string]uint64, error) { return nil, nil }
func (k *linux) close() error                         { return k.network.Close() }
