// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// TestCards: cards of three models are on one wire, one is on another. Merged segments reach a
// virtio card whole, as a vnet header carries them.
func TestCards(t *testing.T) {
	nothingLeft(t)
	const script = `
		card() { for d in /sys/class/net/*; do [ "$(cat $d/address)" != "$1" ] || basename $d; done; }
		for n in 1 2 3 4; do
			d=$(card 52:54:00:00:00:0$n)
			echo "card $n: $(ethtool -i $d | sed -n 's/^driver: //p')"
			ip netns add n$n && ip link set $d netns n$n name eth && ip -n n$n link set eth mtu 1500 up
			ip -n n$n addr add 192.0.2.$n/24 dev eth
		done
		for n in 2 3; do # an e1000e has its link seconds after it is up
			for try in 1 2 3 4 5; do ip netns exec n1 ping -q -c 1 -W 5 192.0.2.$n >/dev/null && echo "1 reaches $n" && break; done
		done
		ip netns exec n1 ping -q -c 1 -W 2 192.0.2.4 >/dev/null || echo "1 does not reach 4"
		ip netns exec n1 ethtool -k eth | grep -E '^(tcp-segmentation-offload|rx-gro-hw): on'
		exit 0`
	var out, progress bytes.Buffer
	code, err := Run(t.Context(), Options{
		ICount: true, RealIdle: true, Modules: []string{"virtio_net", "vmxnet3", "e1000e"},
		Command: []string{"sh", "-c", script}, Output: &out, Progress: &progress,
		Cards: []Card{
			{Model: "virtio-net-pci", MAC: "52:54:00:00:00:01", Wire: "a", Queues: 2},
			{Model: "vmxnet3", MAC: "52:54:00:00:00:02", Wire: "a"},
			{Model: "e1000e", MAC: "52:54:00:00:00:03", Wire: "a"},
			{Model: "e1000e", MAC: "52:54:00:00:00:04", Wire: "b"},
		},
	})
	const want = "card 1: virtio_net\ncard 2: vmxnet3\ncard 3: e1000e\ncard 4: e1000e\n" +
		"1 reaches 2\n1 reaches 3\n1 does not reach 4\ntcp-segmentation-offload: on\nrx-gro-hw: on\n"
	if err != nil || code != 0 || out.String() != want {
		t.Errorf("exit code %d, %v\n%s%s\nwant\n%s", code, err, &progress, &out, want)
	}
}

func TestCardArguments(t *testing.T) {
	got := cardArguments([]Card{
		{Model: "vmxnet3", MAC: "52:54:00:00:00:01", Wire: "a"},
		{Model: "virtio-net-pci", MAC: "52:54:00:00:00:02", Wire: "a", Queues: 2, Options: "host_mtu=9000"},
	}, 6)
	want := []string{
		"-netdev", "tap,id=card0,fd=6", "-device", "vmxnet3,netdev=card0,mac=52:54:00:00:00:01,romfile=",
		"-netdev", "tap,id=card1,fds=7:8",
		"-device", "virtio-net-pci,netdev=card1,mac=52:54:00:00:00:02,romfile=,mq=on,vectors=6,host_mtu=9000",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", fmt.Sprint(got), fmt.Sprint(want))
	}
}

// TestUnknownCard: QEMU's own words say which model it lacks.
func TestUnknownCard(t *testing.T) {
	nothingLeft(t)
	_, err := Run(t.Context(), Options{Command: []string{"true"}, Cards: []Card{{Model: "nonesuch", MAC: "52:54:00:00:00:01"}}})
	oneLine(t, err, "nonesuch")
	if has, err := HasCard(t.Context(), "nonesuch"); has || err != nil {
		t.Errorf("a card of model nonesuch: %t, %v", has, err)
	}
	if has, err := HasCard(t.Context(), "e1000e"); !has || err != nil {
		t.Errorf("a card of model e1000e: %t, %v", has, err)
	}
}
