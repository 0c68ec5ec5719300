// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestNotify: the service manager hears READY once the API answers, a sign of life with each
// heartbeat, none from a daemon that cannot beat, and STOPPING at the end.
func TestNotify(t *testing.T) {
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", at)
	hear := func(patience time.Duration) string {
		b := make([]byte, 256)
		socket.SetReadDeadline(time.Now().Add(patience))
		n, err := socket.Read(b)
		if err != nil {
			return ""
		}
		return string(b[:n])
	}
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, both...)
	if first := hear(patience); first != "READY=1" {
		t.Errorf("first %q, want READY=1", first)
	}
	for range 3 {
		if next := hear(5 * time.Second); next != "WATCHDOG=1" {
			t.Errorf("%q while it lives, want WATCHDOG=1", next)
		}
	}
	r.terminate()
	last := hear(time.Second)
	for next := last; next != ""; next = hear(100 * time.Millisecond) {
		last = next
	}
	if !strings.Contains(last, "STOPPING=1") {
		t.Errorf("last %q, want STOPPING=1", last)
	}
}
