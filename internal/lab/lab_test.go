// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// firewall is Firewall for the length of a test.
func firewall(t *testing.T, o FirewallOptions) *Topology {
	t.Helper()
	f, err := Firewall(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// gone complains of whatever is left of a lab.
func gone(t *testing.T, dir, prefix string) {
	t.Helper()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v, want it gone", dir, err)
	}
	if left, _ := filepath.Glob("/run/netns/" + prefix + "*"); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts left in %s (%v)", dir, err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	f := firewall(t, FirewallOptions{})
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(f.BPFFS()), &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Errorf("no bpffs around %s: %v", f.BPFFS(), err)
	}
	cmd := f.Client.NS.Command(context.Background(), "sh", "-c", "echo there; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil { // it has entered the namespace
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("process of a closed lab: %v, want it killed", err)
	}
	gone(t, f.Dir(), f.record.Prefix)
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestDeadLabIsRemoved(t *testing.T) {
	owner := exec.Command("/proc/self/exe")
	owner.Env = append(os.Environ(), "LAB_TEST_OWNER=crashed")
	out, err := owner.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var dir, ns string
	var pid int
	if _, err := fmt.Sscan(string(out), &dir, &ns, &pid); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the crash left nothing to remove: %v", err)
	}
	alive, err := New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	gone(t, dir, strings.TrimSuffix(ns, "r"))
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) { // it was killed, and dies when its CPU comes to it
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("process %d still runs: %s", pid, state)
		}
	}

	// A living owner's lab is left alone.
	another, err := New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	if _, err := os.Stat(alive.Dir()); err != nil {
		t.Errorf("lab of a living process: %v", err)
	}
}

func TestKeptLab(t *testing.T) {
	name := fmt.Sprintf("kept%d", os.Getpid())
	f := firewall(t, FirewallOptions{Name: name, Kept: true})
	if _, err := FindFirewall(name); err == nil {
		t.Error("found a lab that is not kept yet")
	}
	if err := f.Keep(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Firewall(FirewallOptions{Name: name, Kept: true}); err == nil || !strings.Contains(err.Error(), "is up already") {
		t.Errorf("second lab of that name: %v", err)
	}
	found, err := FindFirewall(name)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := found.Server.NS.Run("ip", "-br", "address", "show", "dev", "eth0"); err != nil || !strings.Contains(out, "198.19.0.2/24") {
		t.Errorf("server of the found lab: %q, %v", out, err)
	}
	if err := Down(name); err != nil {
		t.Fatal(err)
	}
	gone(t, f.Dir(), "shunt-"+name)
	if err := Down(name); err == nil || !strings.Contains(err.Error(), "is not up") {
		t.Errorf("second Down: %v", err)
	}
}

func TestNamespaceDo(t *testing.T) {
	f := firewall(t, FirewallOptions{})
	here := func() uint64 { return inode("/proc/thread-self/ns/net") }
	home, want := here(), inode(filepath.Join("/run/netns", f.Server.NS.Name()))
	var inside uint64
	if err := f.Server.NS.Do(func() error { inside = here(); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside != want || here() != home {
		t.Errorf("inside %d, want %d; back in %d, want %d", inside, want, here(), home)
	}
	if err := (&NS{name: "none"}).Do(func() error { return nil }); err == nil {
		t.Error("entered a namespace that does not exist")
	}
}

func TestErrorsNameTheCommand(t *testing.T) {
	f := firewall(t, FirewallOptions{})
	_, err := f.Client.NS.Run("ip", "link", "show", "nonesuch")
	for _, word := range []string{"ip link show nonesuch", "does not exist"} {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q: want one line with %q", err, word)
		}
	}
	if err := f.LAN.NS.NFT("table inet x { rule }"); err == nil {
		t.Error("nft took nonsense")
	}
	if _, err := Firewall(FirewallOptions{NAT: "triple"}); err == nil {
		t.Error("unknown NAT was taken")
	}
}

// What is told of a daemon that did not come up is why: the end of its log, or how its crash began.
func TestTail(t *testing.T) {
	registers := strings.Repeat("\nrax    0x2a312177ce68", 40)
	for log, want := range map[string]string{
		strings.Repeat("port lan: attached\n", 40) + "shunt: port wan: no such interface\n":           "shunt: port wan: no such interface",
		"port lan: attached\nfatal error: sync: unlock of unlocked mutex\n\ngoroutine 1:" + registers: "fatal error: sync: unlock of unlocked mutex; goroutine 1:; rax",
		"SIGSEGV: segmentation violation\nPC=0x447c0e m=0 sigcode=128" + registers:                    "SIGSEGV: segmentation violation; PC=0x447c0e m=0 sigcode=128; rax",
	} {
		d := &Daemon{log: filepath.Join(t.TempDir(), "daemon.log")}
		if err := os.WriteFile(d.log, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.tail(); !strings.Contains(got, want) || len(got) > 410 || strings.Contains(got, "\n") {
			t.Errorf("%q; want one line with %q", got, want)
		}
	}
}
