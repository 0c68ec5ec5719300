// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/config"
)

// openTerminal makes a pseudo terminal: what its screen gets, and the terminal itself.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 70})
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

func TestTopOnATerminal(t *testing.T) {
	screen, terminal := openTerminal(t)
	if got := terminalSize(terminal); got != (size{70, 12}) {
		t.Fatalf("size %v", got)
	}
	set(t, &os.Stdin, terminal)
	before, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{out: terminal, paths: config.Paths{State: serve(t, example())}}
	done := make(chan error, 1)
	go func() { done <- e.topLive(t.Context(), &topPoller{env: e}) }()

	shown := ""
	buf := make([]byte, 4096)
	for !strings.Contains(shown, "10.0.0.2:77") {
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		shown += string(buf[:n])
	}
	if !strings.HasPrefix(shown, "\x1b[?1049h\x1b[?25l\x1b[H") {
		t.Errorf("begins with %.20q", shown)
	}
	screen.WriteString("q")
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("q does not end it")
	}
	after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the keyboard is not put back: %v", err)
	}
}
