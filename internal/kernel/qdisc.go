// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Parents of qdiscs and filters (include/uapi/linux/pkt_sched.h).
const (
	tcRoot    = 0xffffffff // TC_H_ROOT
	tcIngress = 0xfffffff1 // TC_H_INGRESS and TC_H_CLSACT
	minor     = 0x0000ffff

	tcClsactIngress = 0xfffffff2 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
	tcClsactEgress  = 0xfffffff3 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)
)

const sizeofTcmsg = 20

// tcMessage is what qdisc and filter messages have in common: struct tcmsg, the
// kind, and what a filter calls itself.
type tcMessage struct {
	index  int
	handle uint32
	parent uint32
	info   uint32 // filters: preference << 16 | protocol
	kind   string
	name   string // cls_bpf: the program's

	options []byte // TCA_OPTIONS
}

func decodeTC(m netlink.Message) (tcMessage, error) {
	var t tcMessage
	if len(m.Data) < sizeofTcmsg {
		return t, fmt.Errorf("tc message of %d bytes", len(m.Data))
	}
	t.index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	t.handle = binary.NativeEndian.Uint32(m.Data[8:])
	t.parent = binary.NativeEndian.Uint32(m.Data[12:])
	t.info = binary.NativeEndian.Uint32(m.Data[16:])
	err := nl.Attributes(m, sizeofTcmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.TCA_KIND:
			t.kind = ad.String()
		case unix.TCA_OPTIONS:
			t.options = ad.Bytes()
		}
	})
	if t.kind == "bpf" {
		t.name = bpfFilterName(t.options)
	}
	return t, err
}

// bpfFilterName returns TCA_BPF_NAME, which other kinds of filter do not have.
func bpfFilterName(options []byte) string {
	const tcaBPFName = 7
	var name string
	if err := nl.Nested(options, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == tcaBPFName {
			name = ad.String()
		}
	}); err != nil {
		return "" // only words for a message; the filter is reported all the same
	}
	return name
}

// rootQdiscs returns, by interface, the kind of the qdisc that an administrator
// set, which is a queueing policy that XDP would bypass.
func rootQdiscs() (map[int]string, error) {
	messages, err := nl.Dump(unix.NETLINK_ROUTE, unix.RTM_GETQDISC, make([]byte, sizeofTcmsg))
	if err != nil {
		return nil, err
	}
	policies := make(map[int]string)
	for _, m := range messages {
		q, err := decodeTC(m)
		if err != nil {
			return nil, err
		}
		if q.queueing() && (policies[q.index] == "" || q.parent == tcRoot) {
			policies[q.index] = q.kind
		}
	}
	return policies, nil
}

// queueing reports whether a qdisc is a queueing policy. The kernel's own qdiscs
// have major handle 0 (qdisc_create_dflt), those set by hand or by systemd have one
// (qdisc_alloc_handle). Multi-queue roots only fan out, and their children are judged
// by themselves; clsact and ingress hold filters, not packets.
func (q tcMessage) queueing() bool {
	switch q.kind {
	case "mq", "noqueue", "clsact", "ingress":
		return false
	}
	return q.handle&^minor != 0
}

// tcFilters returns the filters on one parent of a link. A link without clsact or
// ingress has none.
func tcFilters(index int, parent uint32) ([]tcMessage, error) {
	body := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint32(body[12:], parent)
	messages, err := nl.Dump(unix.NETLINK_ROUTE, unix.RTM_GETTFILTER, body)
	if err != nil {
		return nil, err
	}
	var filters []tcMessage
	for _, m := range messages {
		f, err := decodeTC(m)
		if err != nil {
			return nil, err
		}
		// Each preference comes once by itself, with handle 0, and then with its filters.
		if f.handle != 0 {
			filters = append(filters, f)
		}
	}
	return filters, nil
}
