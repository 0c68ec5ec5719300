// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// size is that of a terminal in characters; zero is no terminal.
type size struct{ width, height int }

func terminalSize(f *os.File) size {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return size{}
	}
	// A terminal that does not know its size, such as a serial line, is taken for a VT100.
	s := size{int(ws.Col), int(ws.Row)}
	if s.width == 0 || s.height == 0 {
		s = size{80, 24}
	}
	return s
}

// keys switches a keyboard to single keys without echo, and sends what is typed. The
// signals of Ctrl-C and Ctrl-Z stay. The function returned puts the keyboard back.
func keys(f *os.File) (typed <-chan byte, restore func(), err error) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, nil, fmt.Errorf("keyboard: %w", err)
	}
	single := *before
	single.Lflag &^= unix.ICANON | unix.ECHO
	single.Cc[unix.VMIN], single.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &single); err != nil {
		return nil, nil, fmt.Errorf("keyboard: %w", err)
	}
	c := make(chan byte)
	go func() { // ends with the keyboard, or with the program
		buf := make([]byte, 1)
		for {
			if n, err := f.Read(buf); n == 0 || err != nil {
				close(c)
				return
			}
			c <- buf[0]
		}
	}()
	return c, func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil
}
