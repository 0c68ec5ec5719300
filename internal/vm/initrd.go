// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed init.sh
var initScript []byte

//go:embed guest.sh
var guestScript []byte

// makeInitrd makes the first root of the guest, in memory: a static shell, the modules that
// reach the real one, and what is to be run there.
func makeInitrd(i image, settings string) (*os.File, error) {
	shell, err := find("busybox")
	if err != nil {
		return nil, err
	}
	if err := mustBeStatic(shell); err != nil {
		return nil, err
	}
	var a archive
	for _, dir := range []string{"bin", "dev", "proc", "modules", "lower", "upper", "root"} {
		a.add(dir, 0o040755, nil)
	}
	busybox, err := os.ReadFile(shell)
	if err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	a.add("bin/busybox", 0o100755, busybox)
	a.add("init", 0o100755, initScript)
	a.add("guest.sh", 0o100755, guestScript)
	a.add("settings", 0o100644, []byte(settings))
	modules, err := os.ReadDir(i.initrd())
	if err != nil {
		return nil, fmt.Errorf("vm: cache: %w", err)
	}
	for _, m := range modules { // sorted by name
		object, err := os.ReadFile(filepath.Join(i.initrd(), m.Name()))
		if err != nil {
			return nil, fmt.Errorf("vm: cache: %w", err)
		}
		a.add("modules/"+m.Name(), 0o100644, object)
	}
	a.add("TRAILER!!!", 0, nil)
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("vm: memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initrd")
	if _, err := f.Write(a.Bytes()); err != nil {
		f.Close()
		return nil, fmt.Errorf("vm: memfd: %w", err)
	}
	return f, nil
}

// mustBeStatic: there are no libraries beside it.
func mustBeStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("vm: %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("vm: %s needs libraries; install Debian's package busybox-static instead", path)
		}
	}
	return nil
}

// archive is a cpio archive in the form that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	files int
}

func (a *archive) add(name string, mode int, data []byte) {
	a.files++ // inode
	const uid, gid, links, time, major, minor, checksum = 0, 0, 1, 0, 0, 0, 0
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.files, mode, uid, gid, links, time, len(data), major, minor, 0, 0, len(name)+1, checksum, name)
	a.pad()
	a.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// quote makes one word of the shell from any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(" " + quote(w))
	}
	return b.String()
}
