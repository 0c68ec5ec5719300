// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"

	"shunt/internal/nl/nltest"
)

// tc runs tc with words, of which one in quotes may hold blanks.
func tc(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", "tc "+command).CombinedOutput(); err != nil {
		t.Fatalf("tc %s: %s", command, out)
	}
}

// TestReadQueue: what stands behind a link is read at every place where it may stand.
func TestReadQueue(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va numtxqueues 2 type veth peer name vb
		ip link set va up
		ip link set vb up`)
	const bpf, shallow = "bpf bytecode '1,6 0 0 1' classid 1:2", "u32 match u32 0 0 flowid 1:2"
	tree := []string{"qdisc add dev va root handle 1: htb", "class add dev va parent 1: classid 1:1 htb rate 1mbit",
		"class add dev va parent 1:1 classid 1:2 htb rate 1mbit"}
	for _, c := range []struct {
		name           string
		commands       []string
		deeper, filter string
	}{
		{"nothing", nil, "", ""},
		{"another link's", []string{"qdisc add dev vb root handle 1: htb", "filter add dev vb parent 1: " + bpf}, "", ""},
		{"a tree", tree, "", ""},
		{"a filter at the root", append(tree, "filter add dev va parent 1: pref 7 u32 match u32 0 0 flowid 1:2"), "", "filter u32 pref 7 at 1:"},

		{"a program at the root", append(tree, "filter add dev va parent 1: pref 7 "+bpf),
			"filter bpf pref 7 at 1: (reads what its program reads)", "filter bpf pref 7 at 1:"},
		{"a program at an inner class", append(tree, "filter add dev va parent 1:1 pref 7 "+bpf), "filter bpf pref 7 at 1:1", "filter bpf pref 7 at 1:1"},
		{"a program at a leaf, which is never asked", append(tree, "filter add dev va parent 1:2 pref 7 "+bpf), "", ""},
		{"a program in another chain", append(tree, "filter add dev va parent 1: chain 5 pref 7 "+bpf), "filter bpf pref 7 at 1:", "filter bpf pref 7 at 1:"},
		{"behind a shallow filter", append(tree, "filter add dev va parent 1: pref 3 "+shallow, "filter add dev va parent 1: pref 7 "+bpf),
			"filter bpf pref 7 at 1:", "filter u32 pref 3 at 1:"},
		{"in a qdisc of a class", append(tree, "qdisc add dev va parent 1:2 handle 20: htb", "filter add dev va parent 20: pref 7 "+bpf),
			"filter bpf pref 7 at 20:", "filter bpf pref 7 at 20:"},
		{"in a queue of several", []string{"qdisc add dev va root handle 1: mq", "qdisc add dev va parent 1:2 handle 20: htb", "filter add dev va parent 20: pref 7 " + bpf},
			"filter bpf pref 7 at 20:", "filter bpf pref 7 at 20:"},
		{"an action", append(tree, "filter add dev va parent 1: pref 7 u32 match u32 0 0 action mirred egress mirror dev vb"),
			"action mirred of filter u32 pref 7 at 1:", "filter u32 pref 7 at 1:"},
		{"clsact at egress", []string{"qdisc add dev va clsact", "filter add dev va egress pref 7 bpf da bytecode '1,6 0 0 1'"},
			"filter bpf pref 7 at egress", "filter bpf pref 7 at egress"},
		{"a policer of clsact", []string{"qdisc add dev va clsact", "filter add dev va egress pref 7 " + shallow}, "", "filter u32 pref 7 at egress"},
		{"clsact at ingress", []string{"qdisc add dev va clsact", "filter add dev va ingress pref 7 bpf da bytecode '1,6 0 0 1'"}, "", ""},
		{"a block", []string{"qdisc add dev va egress_block 9 clsact", "filter add block 9 pref 7 bpf da bytecode '1,6 0 0 1'"},
			"filter bpf pref 7 at egress", "filter bpf pref 7 at egress"},
	} {
		for _, command := range c.commands {
			tc(t, command)
		}
		q, err := ReadQueue(links(t)["va"])
		if err != nil || !strings.HasPrefix(q.LooksDeeper, c.deeper) || (c.deeper == "") != (q.LooksDeeper == "") || q.Filter != c.filter {
			t.Errorf("%s: %+v, %v; want deeper %q, filter %q", c.name, q, err, c.deeper, c.filter)
		}
		for _, qdisc := range []string{"va root", "vb root", "va clsact"} {
			exec.Command("sh", "-c", "tc qdisc del dev "+qdisc).Run() // which may not be there
		}
	}
	if q, err := ReadQueue(Link{Index: 4711, Name: "gone"}); err != nil || q != (Queue{}) {
		t.Errorf("a link that is gone: %+v, %v", q, err)
	}
}

// attributes writes attributes of u32 by their type.
func attributes(t *testing.T, pairs ...uint32) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	for i := 0; i < len(pairs); i += 2 {
		ae.Uint32(uint16(pairs[i]), pairs[i+1])
	}
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLooksDeeper: an option decides, and what is not known looks deeper.
func TestLooksDeeper(t *testing.T) {
	meta := func(left, right uint16) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(left))
		return append([]byte{12, 0, 1, 0}, binary.NativeEndian.AppendUint32(b, uint32(right))...)
	}
	bytes := func(n, at int, value byte) []byte { b := make([]byte, n); b[at] = value; return b }
	for _, c := range []struct {
		part, kind string
		options    []byte
		want       string
	}{
		{"qdisc", "htb", nil, ""},
		{"qdisc", "frob", nil, "not known to shunt"},
		{"qdisc", "teql0", nil, "reads route, neighbour"},
		{"qdisc", "gred", nil, "reads tc_index"},
		{"qdisc", "cake", attributes(t, 5, 7, 11, 0, 18, 0), ""},
		{"qdisc", "cake", attributes(t, 5, 7, 11, 1, 18, 0), "nat"},
		{"qdisc", "cake", attributes(t, 19, 0), "option 19, not known to shunt"},
		{"qdisc", "cake", []byte{1}, unread},
		{"qdisc", "red", attributes(t, 5, 0, 6, 0), ""},
		{"qdisc", "red", attributes(t, 5, 0, 6, 10), "qevent with the filters of block 10"},
		{"filter", "flower", attributes(t, 8, 1, 18, 2, 86, 0, 102, 0), ""},
		{"filter", "flower", attributes(t, 8, 1, 91, 2), "ct_*: conntrack entry"},
		{"filter", "flower", attributes(t, 26, 1), "enc_*: tunnel information"},
		{"filter", "flower", attributes(t, 100, 1), "hash"},
		{"filter", "flower", attributes(t, 110, 1), "key 110, not known to shunt"},
		{"filter", "flow", attributes(t, 1, 1<<0|1<<1|1<<7|1<<17), ""},
		{"filter", "flow", attributes(t, 1, 1<<4), "proto-dst"},
		{"filter", "flow", attributes(t, 1, 1<<9|1<<7), "nfct-src"},
		{"filter", "flow", attributes(t, 1, 1<<13), "rt-classid"},
		{"filter", "flow", attributes(t, 1, 1<<18), "key 18, not known to shunt"},
		{"filter", "rsvp", nil, "not known to shunt"},
		{"action", "gact", nil, ""},
		{"action", "frob", nil, "not known to shunt"},
		{"ematch", "cmp", bytes(12, 11, 0x21), ""},
		{"ematch", "cmp", bytes(12, 11, 2), atTransport},
		{"ematch", "cmp", nil, unread},
		{"ematch", "nbyte", bytes(5, 3, 0x1f), ""},
		{"ematch", "nbyte", bytes(5, 3, 0x20), atTransport},
		{"ematch", "text", bytes(24, 22, 0x11), ""},
		{"ematch", "text", bytes(24, 22, 0x20), atTransport},
		{"ematch", "text", bytes(24, 22, 0x02), atTransport},
		{"ematch", "meta", meta(0x100c, 0), ""}, // nf_mark, an integer
		{"ematch", "meta", meta(0, 14), "rt_classid"},
		{"ematch", "meta", meta(20, 0), "value 20"},
		{"ematch", "meta", nil, unread},
	} {
		if got, deeper := looksDeeper(c.part, c.kind, c.options); got != c.want || deeper != (c.want != "") {
			t.Errorf("%s %s %x: %q, %v; want %q", c.part, c.kind, c.options, got, deeper, c.want)
		}
	}
}
