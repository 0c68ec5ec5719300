// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"shunt/internal/vm"
)

const (
	// The guest has one processor of a thousand million instructions a second: it is as busy
	// with so many connections as two real cores are with connectionRate.
	countedRate = 1200
	countedLong = 12 * time.Second
)

// ConnectionsCounted is Connections in a virtual machine with one processor whose clock is
// its instructions. Its seconds are thousands of millions of instructions: they know neither
// caches nor other machines.
func ConnectionsCounted(ctx context.Context, o ConnectionsOptions) (*ConnectionsReport, error) {
	o = o.or(countedRate, countedLong)
	head := o.head("connections", 3, "", "")
	share, err := os.MkdirTemp("", "shunt-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(share)
	const file = "report.json"
	out := &guestOutput{say: o.Say}
	exit, err := vm.Run(ctx, vm.Options{
		Command: []string{"sh", "-c", `"$@" >` + filepath.Join(vm.ShareDir, file), "sh", o.Binary, "bench", "connections", "--json",
			"--rounds", strconv.Itoa(o.Rounds), "--rate", strconv.Itoa(o.Rate), "--long", o.Long.String()},
		Dir: "/", ICount: true, Modules: []string{"tun", "veth"}, Share: share, Timeout: bootLimit, Output: out, Progress: out,
	})
	if err != nil {
		return nil, interrupted(ctx, err)
	}
	text, err := os.ReadFile(filepath.Join(share, file))
	if err != nil || len(text) == 0 {
		return nil, fmt.Errorf("bench: in the guest: exit code %d: %s", exit, strings.TrimPrefix(tail(out.text.String()), "shunt: bench: "))
	}
	report := &ConnectionsReport{}
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("bench: the guest wrote %d bytes that are no report: %w", len(text), err)
	}
	report.How = "Debian's kernel under QEMU, one processor, one instruction a nanosecond; " + report.How
	report.Command = o.command(head.Command+" --counted", countedRate, countedLong)
	report.Load, report.Clang = head.Load, head.Clang
	return report, nil
}

// command is a command with what is not as it would be without.
func (o ConnectionsOptions) command(c string, rate int, long time.Duration) string {
	if o.Rate != rate {
		c += " --rate " + strconv.Itoa(o.Rate)
	}
	if o.Long != long {
		c += " --long " + o.Long.String()
	}
	return c
}
