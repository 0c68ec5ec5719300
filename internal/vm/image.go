// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// image is an unpacked kernel package, made fit for booting. In its directory are
//
//	kernel           the kernel, uncompressed
//	initrd/NN-*.ko   the modules that reach the host's root, in the order to load them
//	lib/modules/     the others, as packed
type image struct{ dir string }

func (i image) kernel() string  { return filepath.Join(i.dir, "kernel") }
func (i image) initrd() string  { return filepath.Join(i.dir, "initrd") }
func (i image) modules() string { return filepath.Join(i.dir, "lib/modules") }

// rootModules are needed before there is a root, or a way to tell why there is none.
var rootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// openImage returns the image of a kernel version from the cache, or downloads and
// unpacks it first; who comes second waits for the first. A version is looked up once:
// a newer package of the same version is had by removing the directory.
func openImage(ctx context.Context, cache, version string, say func(string, ...any)) (image, error) {
	i := image{filepath.Join(cache, version)}
	if _, err := os.Stat(i.dir); err == nil {
		return i, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return i, fmt.Errorf("vm: cache: %w", err)
	}
	release, err := hold(ctx, i.dir+".lock")
	if err != nil {
		return i, err
	}
	defer release()
	if _, err := os.Stat(i.dir); err == nil {
		return i, nil
	}
	part := image{i.dir + ".part"} // one that was left by a killed process is of no use
	if err := os.RemoveAll(part.dir); err != nil {
		return i, fmt.Errorf("vm: cache: %w", err)
	}
	defer os.RemoveAll(part.dir)
	if err := part.make(ctx, version, say); err != nil {
		return i, err
	}
	if err := os.Rename(part.dir, i.dir); err != nil {
		return i, fmt.Errorf("vm: cache: %w", err)
	}
	return i, nil
}

// hold takes the lock of a file, waiting for as long as another process has it.
func hold(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("vm: cache: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("vm: lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("vm: another process holds %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// make fills an image's directory.
func (i image) make(ctx context.Context, version string, say func(string, ...any)) error {
	if err := os.MkdirAll(i.initrd(), 0o755); err != nil {
		return fmt.Errorf("vm: cache: %w", err)
	}
	deb, err := fetch(ctx, i.dir, version, say)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := tool(ctx, i.dir, "dpkg-deb", "-x", deb, i.dir); err != nil {
		return err
	}
	if err := os.Remove(deb); err != nil {
		return fmt.Errorf("vm: cache: %w", err)
	}
	releases, err := os.ReadDir(i.modules())
	if err != nil || len(releases) != 1 {
		return fmt.Errorf("vm: %s holds not one kernel's modules (%v)", filepath.Base(deb), err)
	}
	name := releases[0].Name()
	if _, err := tool(ctx, i.dir, "depmod", "-b", i.dir, name); err != nil {
		return err
	}
	if err := i.chooseModules(ctx, name); err != nil {
		return err
	}
	if err := i.uncompress(ctx, filepath.Join(i.dir, "boot", "vmlinuz-"+name)); err != nil {
		return err
	}
	say("unpacked in %.1f s", time.Since(began).Seconds())
	return nil
}

// fetch downloads the newest package of a kernel version by its name. Lists that are
// missing or stale are renewed once, where there is the right to.
func fetch(ctx context.Context, dir, version string, say func(string, ...any)) (deb string, err error) {
	deb, err = fetchKnown(ctx, dir, version, say)
	if err == nil || ctx.Err() != nil || os.Geteuid() != 0 || errors.Is(err, exec.ErrNotFound) {
		return deb, err
	}
	say("%v; asking apt for new lists", err)
	if _, err := tool(ctx, dir, "apt-get", "-q", "update"); err != nil {
		return "", err
	}
	return fetchKnown(ctx, dir, version, say)
}

func fetchKnown(ctx context.Context, dir, version string, say func(string, ...any)) (deb string, err error) {
	names, err := tool(ctx, dir, "apt-cache", "pkgnames", "linux-image-"+version)
	if err != nil {
		return "", err
	}
	name := newest(version, strings.Fields(names))
	if name == "" {
		return "", fmt.Errorf(`vm: apt knows no linux-image-%s*-amd64: "apt-get update", and for 6.12 on Debian 12 have bookworm-security or bookworm-backports in /etc/apt/sources.list`, version)
	}
	say("downloading %s", name)
	// apt's own user may not write here; as root it says so at length.
	if _, err := tool(ctx, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("vm: apt-get download %s left %d files", name, len(found))
	}
	return found[0], nil
}

// newest picks the full kernel with the highest version; the cloud kernel has no 9p.
func newest(version string, names []string) (best string) {
	full := regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(version) + `(\.\d+)*(\+[a-z0-9]+)?(-\d+)?-amd64$`)
	var most []int
	for _, name := range names {
		if !full.MatchString(name) {
			continue
		}
		var v []int
		for _, digits := range regexp.MustCompile(`\d+`).FindAllString(strings.TrimSuffix(name, "-amd64"), -1) {
			n, _ := strconv.Atoi(digits)
			v = append(v, n)
		}
		// The package that only depends on the others is named by the version alone.
		if name != "linux-image-"+version+"-amd64" && slices.Compare(v, most) > 0 {
			best, most = name, v
		}
	}
	return best
}

// chooseModules puts the modules for the initrd aside, uncompressed.
func (i image) chooseModules(ctx context.Context, release string) error {
	args := append([]string{"-d", i.dir, "-S", release, "-a", "--show-depends"}, rootModules...)
	lines, err := tool(ctx, i.dir, "modprobe", args...)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for line := range strings.Lines(lines) {
		path, isFile := strings.CutPrefix(strings.TrimSpace(line), "insmod ")
		if !isFile || seen[path] {
			continue // builtin, or there already
		}
		seen[path] = true
		object, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("vm: kernel package: %w", err)
		}
		if object, err = expand(ctx, object); err != nil {
			return err
		}
		base, _, _ := strings.Cut(filepath.Base(path), ".")
		name := fmt.Sprintf("%02d-%s.ko", len(seen), base)
		if err := os.WriteFile(filepath.Join(i.initrd(), name), object, 0o644); err != nil {
			return fmt.Errorf("vm: cache: %w", err)
		}
	}
	return nil
}

// uncompress takes the kernel out of its wrapping (Documentation/arch/x86/boot.rst): the
// emulator would need seconds to do it. QEMU enters it by its PVH note.
func (i image) uncompress(ctx context.Context, bzImage string) error {
	const setupSectors, magic, version, payloadOffset, payloadLength = 0x1f1, 0x202, 0x206, 0x248, 0x24c
	b, err := os.ReadFile(bzImage)
	if err != nil {
		return fmt.Errorf("vm: kernel package: %w", err)
	}
	le := binary.LittleEndian
	if len(b) < 0x1000 || string(b[magic:magic+4]) != "HdrS" || le.Uint16(b[version:]) < 0x208 {
		return fmt.Errorf("vm: %s is no bzImage", filepath.Base(bzImage))
	}
	begin := (int(b[setupSectors])+1)*512 + int(le.Uint32(b[payloadOffset:]))
	end := begin + int(le.Uint32(b[payloadLength:]))
	if end > len(b) || begin > end-4 {
		return fmt.Errorf("vm: %s is cut short", filepath.Base(bzImage))
	}
	elf, err := expand(ctx, b[begin:end-4]) // the length follows (scripts/Makefile.lib, size_append)
	if err != nil {
		return err
	}
	if err := os.WriteFile(i.kernel(), elf, 0o644); err != nil {
		return fmt.Errorf("vm: cache: %w", err)
	}
	return nil
}

// expand uncompresses what Debian compresses kernels and modules with, if it is.
func expand(ctx context.Context, b []byte) ([]byte, error) {
	for magic, program := range map[string]string{"\xfd7zXZ\x00": "xz", "\x28\xb5\x2f\xfd": "zstd"} {
		if bytes.HasPrefix(b, []byte(magic)) {
			out, err := pipe(ctx, "", bytes.NewReader(b), program, "-dc")
			return []byte(out), err
		}
	}
	if !bytes.HasPrefix(b, []byte("\x7fELF")) {
		return nil, errors.New("vm: the kernel package is compressed neither by xz nor zstd")
	}
	return b, nil
}

// packages are where the programs come from that the harness calls.
var packages = map[string]string{
	"apt-cache": "apt", "apt-get": "apt", "dpkg-deb": "dpkg", "depmod": "kmod", "modprobe": "kmod",
	"ip": "iproute2", "xz": "xz-utils", "zstd": "zstd", "busybox": "busybox-static", emulator: "qemu-system-x86",
}

// find is exec.LookPath that names the package, and looks where sudo's PATH may not.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if path, sbin := exec.LookPath("/usr/sbin/" + name); sbin == nil {
		return path, nil
	}
	return "", fmt.Errorf("vm: %w; install Debian's package %s", err, packages[name])
}

// tool runs a program of the host and returns its output.
func tool(ctx context.Context, dir, name string, args ...string) (string, error) {
	return pipe(ctx, dir, nil, name, args...)
}

func pipe(ctx context.Context, dir string, in io.Reader, name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, in, &out, &errs
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("vm: %s %s: %w: %s", name, args[0], err, lastLine(errs.String()))
	}
	return out.String(), nil
}

// lastLine is what a program that failed said last.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
