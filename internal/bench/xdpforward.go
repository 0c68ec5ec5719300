// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// xdpForward is the forwarding plane of xdp-tools in one of its modes, fib or flowtable.
func xdpForward(mode string) func(*rig) (stop func() error, err error) {
	return func(r *rig) (func() error, error) {
		devices := []string{r.top.LAN.Device, r.top.WAN.Device}
		run := func(args ...string) error {
			cmd := r.top.LAN.NS.Command(context.Background(), "xdp-forward", append(args, devices...)...)
			cmd.Env = append(os.Environ(), "LIBXDP_BPFFS="+filepath.Dir(r.top.BPFFS()))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("bench: xdp-forward %s: %w: %s", args[0], err, tail(string(out)))
			}
			return nil
		}
		return func() error { return run("unload") }, run("load", "--fwd-mode", mode)
	}
}

// hasXDPForward probes for the program.
func hasXDPForward() error {
	if _, err := exec.LookPath("xdp-forward"); err != nil {
		return fmt.Errorf("%w; Debian has it in xdp-tools from 1.5 on", err)
	}
	return nil
}
