// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
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
	// What is popped to be looked up again comes in once more, by lo.
	err = errors.Join(n.router().Sysctl("net.mpls.platform_labels", "1048575"), n.router().Sysctl("net.mpls.conf.lo.input", "1"))
	if err != nil {
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
	switch {
	case c.kernel == nil:
		return "`ip -f mpls route` has no words for it"
	case c.rule == "O2" || c.rule == "O3":
		return "it has no counters by label"
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

func (k *linux) reset(c trial) error { k.undoIP(k.lines(c)); return nil }
func (k *linux) close() error        { return k.network.Close() }

// counters are those of struct mpls_link_stats that count what did not go through, by device.
func (k *linux) counters() (map[string]uint64, error) {
	text, err := k.router().Run("ip", "-j", "stats", "show", "group", "afstats", "subgroup", "mpls")
	if err != nil {
		return nil, err
	}
	var devices []struct {
		Name  string                       `json:"ifname"`
		Stats map[string]map[string]uint64 `json:"mpls_stats"`
	}
	if err := json.Unmarshal([]byte(text), &devices); err != nil {
		return nil, fmt.Errorf("ip stats show: %w", err)
	}
	flat := map[string]uint64{}
	for _, d := range devices {
		for way, counters := range d.Stats {
			for name, n := range counters {
				if name != "packets" && name != "bytes" {
					flat["drops/"+way+"_"+name] += n
				}
			}
		}
	}
	return flat, nil
}

// release names the kernel.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}
