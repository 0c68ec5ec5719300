// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// prepareDir makes the directories for pins, and nothing where no bpffs is mounted.
func prepareDir(dir string) error {
	if err := onBPFFS(dir); err != nil {
		return err
	}
	for _, d := range []string{dir, filepath.Join(dir, "maps"), filepath.Join(dir, "links")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("%w; run as root, or name another directory with --bpffs", err)
		}
	}
	return nil
}

// onBPFFS looks at dir, or what is nearest to it of what is there.
func onBPFFS(dir string) error {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	for at := dir; errors.Is(err, unix.ENOENT) && at != filepath.Dir(at); {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &fs)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; run as root, or name another directory with --bpffs", dir, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s: not on a bpffs; mount one (mount -t bpf bpf /sys/fs/bpf) or name another directory with --bpffs", dir)
	}
	return nil
}

// hold keeps other processes from using dir, which exists, until release.
func hold(dir string) (release func() error, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; run as root", dir, err)
	}
	release = func() error { return unix.Close(fd) }
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return release, nil
	}
	release()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s: another daemon uses it; give this one another --bpffs", dir)
	}
	return nil, fmt.Errorf("%s: lock: %w", dir, err)
}

// Remove detaches and deletes everything that a dead process left pinned in dir. Missing
// is fine; a directory that a living one has open is an error.
func Remove(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	release, err := hold(dir)
	if err != nil {
		return err
	}
	defer release()
	return removeDir(dir)
}

func removeDir(dir string) error {
	if err := empty(dir); err != nil {
		return err
	}
	return rmdir(dir)
}

// removing is what Paused holds once a removal has begun. An operator's pause outlasts the
// daemon; this one is not his, and where it is found the removal did not come to its end.
const removing = 2

// retire makes every packet the kernel's, and returns when no program is at work that thinks
// otherwise: no port may send to one that is detached already.
func (p *Plane) retire() {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.Paused), removing)
	p.setWord(unsafe.Offsetof(c.Imposer), 0)
	p.Bump() // a hit asks for the generation alone
	grace()
}

// retire does so for what is pinned in dir, if it has this layout.
func retire(dir string) {
	p := &Plane{dir: dir}
	m, err := ebpf.LoadPinnedMap(p.pin("maps", controlMap), nil)
	if err != nil {
		return
	}
	defer m.Close()
	if p.ctl, err = m.Memory(); err == nil && int(p.control().Abi) == ABIVersion {
		p.retire()
	}
}

// empty removes what prepareDir and Pin made in dir.
func empty(dir string) error {
	retire(dir)
	for _, d := range []string{filepath.Join(dir, "links"), filepath.Join(dir, "maps")} {
		entries, err := os.ReadDir(d)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
		for _, e := range entries {
			if err := unpin(filepath.Join(d, e.Name())); err != nil {
				return fmt.Errorf("%s: %w; remove it by hand", d, err)
			}
		}
		if err := rmdir(d); err != nil {
			return err
		}
	}
	return nil
}

// unpin removes a pin; a link is detached first.
func unpin(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		a := &attachment{link: l}
		return a.release()
	}
	return os.Remove(path)
}

func rmdir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %v; it holds something that is not shunt's", dir, err)
	}
	return nil
}
