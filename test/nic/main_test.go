// SPDX-License-Identifier: Apache-2.0

// Package nic runs shunt on network cards that QEMU emulates, as they come: Debian's kernel and
// drivers, the offloads that the drivers choose, shunt without a configuration.
//
// TestModels boots one guest for each model of card (internal/vm) and runs the tests of the other files
// in it. A client, the router and a server are network namespaces of the guest; the router's two
// cards are of the model, the others are virtio-net. All are on taps with a vnet header.
//
//	make test-nic                                                       everything, some minutes
//	go test -v ./test/nic -boot -run TestModels/vmxnet3                 one model
//	go test -v ./test/nic -boot -run TestModels/vmxnet3 -tests Changes  one test of it
//	go test -v ./test/nic -boot -run TestCost                           instructions per packet, by model
//
// Without -boot nothing runs: this is no part of `make test`.
package nic

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shunt/internal/vm"
	"shunt/test/suite"
)

var (
	boot    = flag.Bool("boot", false, "boot guests with emulated cards")
	only    = flag.String("tests", "", "in the guest, run the tests that match")
	card    = flag.String("card", "", "in the guest: the model of the router's cards")
	program = flag.String("shunt", "", "in the guest: the program")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !*boot && *card == "" {
		fmt.Println("nic: make test-nic boots guests with emulated cards")
		return
	}
	os.Exit(m.Run())
}

// models are the cards of the router. What QEMU does not emulate on this machine is left out.
var models = []struct{ name, device, driver string }{
	{"virtio", "virtio-net-pci", "virtio_net"},
	{"vmxnet3", "vmxnet3", "vmxnet3"},
	{"e1000e", "e1000e", "e1000e"},
	{"igb", "igb", "igb"},
}

func TestModels(t *testing.T) {
	onHost(t)
	bin := compile(t)
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			guest(t, bin, m.device, "^TestCard.*"+*only)
		})
	}
}

func onHost(t *testing.T) {
	t.Helper()
	if *card != "" {
		t.Skip("in the guest the others run")
	}
	if os.Geteuid() != 0 {
		t.Fatal("taps need root; run the tests with sudo")
	}
}

func compile(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	cmd := exec.Command("go", "test", "-c", "-buildvcs=false", "-o", filepath.Join(bin, "nic.test"), "shunt/test/nic")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test -c shunt/test/nic: %v\n%s", err, out)
	}
	if err := suite.Build(filepath.Join(bin, "shunt"), ""); err != nil {
		t.Fatal(err)
	}
	return bin
}

// MACs of the cards, by what they are for.
const (
	clientMAC = "52:54:00:00:00:01"
	lanMAC    = "52:54:00:00:00:02"
	wanMAC    = "52:54:00:00:00:03"
	serverMAC = "52:54:00:00:00:04"
)

// guest boots a guest whose router has cards of a model, and runs tests there.
func guest(t *testing.T, bin, model, tests string) {
	t.Helper()
	has, err := vm.HasCard(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	if !has {
		t.Skipf("this machine's QEMU does not emulate %s", model)
	}
	const end = "virtio-net-pci"
	var out bytes.Buffer
	o := vm.Options{
		Command: []string{filepath.Join(bin, "nic.test"), "-test.v", "-test.run=" + tests, "-card=" + model, "-shunt=" + filepath.Join(bin, "shunt")},
		Dir:     "/", MemoryMB: 3072, ICount: true, RealIdle: true, Timeout: 10 * time.Minute,
		Modules: []string{"virtio_net", "vmxnet3", "e1000e", "igb", "8021q", "nf_conntrack", "nft_masq", "nft_flow_offload", "nf_flow_table_inet"},
		Cards: []vm.Card{
			{Model: end, MAC: clientMAC, Wire: "lan"}, {Model: model, MAC: lanMAC, Wire: "lan"},
			{Model: model, MAC: wanMAC, Wire: "wan"}, {Model: end, MAC: serverMAC, Wire: "wan"},
		},
		Output: &out, Progress: os.Stdout,
	}
	if testing.Verbose() {
		o.Output = io.MultiWriter(&out, os.Stdout)
	}
	code, err := vm.Run(t.Context(), o)
	switch {
	case err != nil:
		t.Error(err)
	case code != 0:
		t.Errorf("exit code %d", code)
	case !strings.Contains(out.String(), "--- PASS: Test"):
		t.Error("no test has run")
	}
	if strings.Contains(out.String(), "--- SKIP: TestCard") {
		t.Error("a test was skipped")
	}
	if t.Failed() && !testing.Verbose() {
		t.Logf("the guest's output:\n%s", &out)
	}
}
