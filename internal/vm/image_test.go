// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNewest(t *testing.T) {
	for _, c := range []struct{ version, names, want string }{
		{"6.12", `linux-image-6.12-amd64 linux-image-6.12.9+deb12-amd64 linux-image-6.12.117+deb12-amd64
			linux-image-6.12.117+deb12-amd64-dbg linux-image-6.12.118+deb12-cloud-amd64
			linux-image-6.12.119+deb12-amd64-unsigned linux-image-6.12.120+deb12-rt-amd64`, "linux-image-6.12.117+deb12-amd64"},
		{"6.1", "linux-image-6.1.0-9-amd64 linux-image-6.1.0-56-amd64 linux-image-6.12.117+deb12-amd64 linux-image-6.1.0-57-rt-amd64",
			"linux-image-6.1.0-56-amd64"},
		{"6.12", "linux-image-6.12-amd64 linux-image-6.12-cloud-amd64", ""},
		{"6.6", "", ""},
	} {
		if got := newest(c.version, strings.Fields(c.names)); got != c.want {
			t.Errorf("%s: %q, want %q", c.version, got, c.want)
		}
	}
}

// programs makes a directory the only one where programs are looked for.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// TestCannotBeHad: no program, no package, no network: each is one line with the remedy.
func TestCannotBeHad(t *testing.T) {
	const known = "echo linux-image-6.12.117+deb12-amd64"
	for _, c := range []struct {
		name    string
		scripts map[string]string
		words   []string
	}{
		{"no apt", nil, []string{"apt-cache", "install Debian's package apt"}},
		{"no such package", map[string]string{"apt-cache": ":", "apt-get": ":"}, []string{"linux-image-6.12", "bookworm-backports", "sources.list"}},
		{"no network", map[string]string{"apt-cache": known, "apt-get": "echo 'Err: 1' >&2; echo 'E: Failed to fetch it' >&2; exit 100"},
			[]string{"apt-get", "Failed to fetch it"}},
		{"no package comes", map[string]string{"apt-cache": known, "apt-get": ":"}, []string{"download", "left 0 files"}},
		{"nothing to unpack with", map[string]string{"apt-cache": known, "apt-get": ": >x.deb"}, []string{"dpkg-deb", "package dpkg"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs(t, c.scripts)
			cache := t.TempDir()
			_, err := openImage(t.Context(), cache, "6.12", t.Logf)
			oneLine(t, err, c.words...)
			if left, _ := filepath.Glob(filepath.Join(cache, "6.12*")); len(left) != 1 || filepath.Ext(left[0]) != ".lock" {
				t.Errorf("left in the cache: %v", left)
			}
		})
	}
}

func TestNoEmulator(t *testing.T) {
	programs(t, nil)
	cache := t.TempDir()
	if err := os.Mkdir(filepath.Join(cache, "6.12"), 0o755); err != nil {
		t.Fatal(err)
	}
	// That the kernel is in the cache is enough: no program is asked.
	i, err := openImage(t.Context(), cache, "6.12", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	_, err = boot(t.Context(), Options{}, i, nil, t.Logf)
	oneLine(t, err, emulator, "qemu-system-x86")
	_, err = makeInitrd(i, "")
	oneLine(t, err, "busybox", "busybox-static")
}

// TestOneAtATime: who comes second waits for the first, and finds its work done.
func TestOneAtATime(t *testing.T) {
	cache := t.TempDir()
	release, err := hold(t.Context(), filepath.Join(cache, "6.12.lock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	programs(t, nil)
	_, err = openImage(ctx, cache, "6.12", t.Logf)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want it to wait", err)
	}
	second := make(chan error)
	go func() {
		_, err := openImage(t.Context(), cache, "6.12", t.Logf)
		second <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if err := os.Mkdir(filepath.Join(cache, "6.12"), 0o755); err != nil {
		t.Fatal(err)
	}
	release()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestUncompress takes the payload out of a bzImage; what is none is refused.
func TestUncompress(t *testing.T) {
	const elf = "\x7fELF and so on"
	image := make([]byte, 0x2000)
	image[0x1f1] = 3 // four sectors of real-mode code
	copy(image[0x202:], "HdrS\x0f\x02")
	binary.LittleEndian.PutUint32(image[0x248:], 0x100)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(elf)+4))
	copy(image[4*512+0x100:], elf+"size")
	i := imageIn(t)
	bz := filepath.Join(i.dir, "bz")
	for _, c := range []struct {
		change func(b []byte) []byte
		word   string
	}{
		{func(b []byte) []byte { return b }, ""},
		{func(b []byte) []byte { return b[:0x100] }, "no bzImage"},
		{func(b []byte) []byte { return b[:0x1000] }, ""},
		{func(b []byte) []byte { b[0x24e] = 1; return b }, "cut short"},
		{func(b []byte) []byte { b[4*512+0x100] = 'x'; return b }, "neither by xz nor zstd"},
	} {
		if err := os.WriteFile(bz, c.change(append([]byte{}, image...)), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Remove(i.kernel())
		err := i.uncompress(t.Context(), bz)
		if c.word != "" {
			oneLine(t, err, c.word)
			continue
		}
		if b, _ := os.ReadFile(i.kernel()); err != nil || string(b) != elf {
			t.Errorf("%q, %v", b, err)
		}
	}
}

func imageIn(t *testing.T) image { t.Helper(); return image{t.TempDir()} }
