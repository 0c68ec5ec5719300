// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Card is a network card that QEMU emulates for the guest.
//
// Behind each card is a tap device with a vnet header, so merged segments and unfinished
// checksums reach the guest as they reach a guest of a real host: QEMU's hubs drop the vnet
// header. The taps of a wire are ports of one bridge. Taps and bridges live in a network
// namespace without a name, which ends with QEMU.
type Card struct {
	Model   string // QEMU's name of the device: virtio-net-pci, vmxnet3, e1000e, igb
	MAC     string
	Wire    string // cards of the same wire reach each other
	Queues  int    // pairs of queues, 1 if zero; more of them only for virtio-net-pci
	Options string // further properties of the device, as "mrg_rxbuf=off,host_mtu=9000"
}

// HasCard reports whether this machine's QEMU emulates a model.
func HasCard(ctx context.Context, model string) (bool, error) {
	text, err := tool(ctx, "", emulator, "-device", "help")
	return strings.Contains(text, fmt.Sprintf("name %q", model)), err
}

// wireMTU lets every guest choose an MTU up to a jumbo frame's.
const wireMTU = 9200

// openCards makes the taps of all cards, one file for each pair of queues, card by card.
// Closing the files, which QEMU inherits, removes taps, bridges and namespace.
func openCards(ctx context.Context, cards []Card) (taps []*os.File, err error) {
	if len(cards) == 0 {
		return nil, nil
	}
	done := make(chan error, 1)
	go func() {
		// The thread keeps the new namespace, so it ends with this goroutine.
		runtime.LockOSThread()
		taps, err = connect(ctx, cards)
		done <- err
	}()
	if err := <-done; err != nil {
		closeAll(taps)
		return nil, fmt.Errorf("vm: cards: %w", err)
	}
	return taps, nil
}

func connect(ctx context.Context, cards []Card) (taps []*os.File, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("network namespace: %w; run as root", err)
	}
	// Neither taps nor bridges send frames of their own. Without IPv6 there is nothing to switch off.
	os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	var batch strings.Builder
	var wires []string
	for n, c := range cards {
		for range max(1, c.Queues) {
			tap, err := openTap(fmt.Sprintf("tap%d", n), c.Queues > 1)
			if err != nil {
				return taps, err
			}
			taps = append(taps, tap)
		}
		wire := slices.Index(wires, c.Wire)
		if wire < 0 {
			wire = len(wires)
			wires = append(wires, c.Wire)
			fmt.Fprintf(&batch, "link add wire%d up type bridge mcast_snooping 0\n", wire)
		}
		// The bridge takes the lowest MTU of its ports. The queue holds a test's whole burst.
		fmt.Fprintf(&batch, "link set tap%d mtu %d txqueuelen 16384 master wire%d up\n", n, wireMTU, wire)
	}
	path, err := find("ip")
	if err != nil {
		return taps, err
	}
	cmd := exec.CommandContext(ctx, path, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return taps, fmt.Errorf("ip -batch: %w: %s", err, bytes.TrimSpace(out))
	}
	return taps, nil
}

func openTap(name string, queues bool) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w; the kernel needs CONFIG_TUN", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(fmt.Errorf("tap: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// cardArguments are QEMU's for the cards, whose taps are its files from number fd on.
func cardArguments(cards []Card, fd int) (args []string) {
	for n, c := range cards {
		queues := max(1, c.Queues)
		numbers := make([]string, queues)
		for q := range numbers {
			numbers[q] = fmt.Sprint(fd)
			fd++
		}
		device := fmt.Sprintf("%s,netdev=card%d,mac=%s,romfile=", c.Model, n, c.MAC)
		if queues == 1 {
			args = append(args, "-netdev", fmt.Sprintf("tap,id=card%d,fd=%s", n, numbers[0]))
		} else {
			args = append(args, "-netdev", fmt.Sprintf("tap,id=card%d,fds=%s", n, strings.Join(numbers, ":")))
			device += fmt.Sprintf(",mq=on,vectors=%d", 2*queues+2)
		}
		if c.Options != "" {
			device += "," + c.Options
		}
		args = append(args, "-device", device)
	}
	return args
}
