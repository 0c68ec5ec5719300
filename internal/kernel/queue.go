// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Queue is what a packet passes only where it leaves by a link: qdiscs, their filters, and filters, programs and
// nftables chains of others at egress.
type Queue struct {
	// LooksDeeper names a part that may read more of a packet than a repeated one carries
	// (QueueKind); empty if there is none.
	LooksDeeper string
	// Filter names a filter, program or chain; empty if there is none. Frames that XDP redirects bypass it.
	Filter string
}

// ReadQueue returns the queue of a link. It asks the kernel for each qdisc and inner class that may have
// filters, so its cost grows with those. A link that is gone has an empty one.
func ReadQueue(link Link) (Queue, error) {
	var q Queue
	qdiscs, err := qdiscsOf(link.Index)
	if err != nil {
		return q, fmt.Errorf("%s: qdiscs: %w", link.Name, err)
	}
	classes, err := dumpTC(unix.RTM_GETTCLASS, link.Index, 0)
	if err != nil {
		return q, fmt.Errorf("%s: classes: %w", link.Name, err)
	}
	chains, err := nftHooks(unix.NFT_MSG_GETCHAIN, link.Name, true)
	if err != nil {
		return q, fmt.Errorf("%s: nftables chains: %w", link.Name, err)
	}
	for _, c := range chains {
		q.hook(c+" at egress", "what its rules ask for")
	}
	for _, d := range qdiscs {
		q.add(d)
	}
	for _, parent := range filterParents(qdiscs, classes) {
		filters, err := tcFilters(link.Index, parent)
		if err != nil {
			return q, fmt.Errorf("%s: filters at %s: %w", link.Name, handle(parent), err)
		}
		for _, f := range filters {
			q.addFilter(f, parent)
		}
	}
	return q, nil
}

// With returns the queue with programs before it, at tcx egress: nobody knows what those read.
func (q Queue) With(programs []string) Queue {
	for _, p := range programs {
		q.hook("program "+strings.TrimPrefix(p, "program ")+" at tcx egress", "what it likes")
	}
	return q
}

// hook notes what may read anything.
func (q *Queue) hook(name, reads string) {
	q.deeper("%s (reads %s)", name, reads)
	q.Filter = cmp.Or(q.Filter, name)
}

// dumpInvisible is TCA_DUMP_INVISIBLE, a flag: qdiscs that the kernel put into classes by itself are
// listed, too.
const dumpInvisible = 10

// qdiscsOf returns the qdiscs on the way out of a link. The kernel lists those of all links.
func qdiscsOf(index int) ([]tcMessage, error) {
	body := append(make([]byte, sizeofTcmsg), 4, 0, dumpInvisible, 0)
	all, err := decodeAllTC(nl.Dump(unix.NETLINK_ROUTE, unix.RTM_GETQDISC, body))
	return slices.DeleteFunc(all, func(d tcMessage) bool { return d.index != index || d.kind == "ingress" }), err
}

func dumpTC(get netlink.HeaderType, index int, parent uint32) ([]tcMessage, error) {
	body := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint32(body[12:], parent)
	return decodeAllTC(nl.Dump(unix.NETLINK_ROUTE, get, body))
}

func decodeAllTC(messages []netlink.Message, err error) ([]tcMessage, error) {
	if err != nil {
		return nil, err
	}
	all := make([]tcMessage, 0, len(messages))
	for _, m := range messages {
		t, err := decodeTC(m)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// filterParents returns where filters of the way out may be: at clsact's egress, at a qdisc, at an inner class.
// The filters of a class without children are never asked (htb_classify(), hfsc_classify()).
func filterParents(qdiscs, classes []tcMessage) (parents []uint32) {
	for _, d := range qdiscs {
		switch {
		case d.kind == "clsact":
			parents = append(parents, tcClsactEgress)
		case d.handle&^minor != 0:
			parents = append(parents, d.handle)
		case d.parent == tcRoot:
			parents = append(parents, 0) // the root without a handle
		}
	}
	unnamed := map[uint32]bool{} // classes that are not among the parents yet
	for _, c := range classes {
		unnamed[c.handle] = true
	}
	for _, c := range classes {
		if unnamed[c.parent] {
			parents = append(parents, c.parent)
			delete(unnamed, c.parent)
		}
	}
	return parents
}

// add notes what a qdisc reads.
func (q *Queue) add(d tcMessage) {
	if why, deeper := looksDeeper(partQdisc, d.kind, d.options); deeper {
		q.deeper("qdisc %s %s (%s)", d.kind, handle(d.handle), why)
	}
}

// addFilter notes what a filter reads, with its ematches and actions.
func (q *Queue) addFilter(f tcMessage, parent uint32) {
	name := fmt.Sprintf("filter %s pref %d at %s", f.kind, f.info>>16, handle(parent))
	if q.Filter == "" {
		q.Filter = name
	}
	if why, deeper := looksDeeper(partFilter, f.kind, f.options); deeper {
		q.deeper("%s (%s)", name, why)
	}
	extra := filterExtras[f.kind]
	err := nl.Nested(f.options, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 0:
		case extra.actions:
			q.addActions(ad, name)
		case extra.ematches:
			q.addEmatches(ad, name)
		}
	})
	if err != nil {
		q.deeper("%s (%s)", name, unread)
	}
}

// filterExtras are the attributes of actions and of ematches by the filter's kind (include/uapi/linux/pkt_cls.h);
// 0: it has none. Other kinds look deeper in any case. Their *_POLICE hold a policer alone.
var filterExtras = map[string]struct{ actions, ematches uint16 }{
	"u32": {7, 0}, "fw": {4, 0}, "basic": {3, 2}, "flow": {9, 11}, "flower": {3, 0}, "matchall": {2, 0},
}

// addActions reads a list of actions by their order.
func (q *Queue) addActions(ad *netlink.AttributeDecoder, filter string) {
	const tcaActKind, tcaActOptions = 1, 2
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		var kind string
		var options []byte
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case tcaActKind:
				kind = ad.String()
			case tcaActOptions:
				options = ad.Bytes()
			}
		})
		if why, deeper := looksDeeper(partAction, kind, options); deeper {
			q.deeper("action %s of %s (%s)", kind, filter, why)
		}
	})
}

// addEmatches reads a tree of ematches: a header, then a list of struct tcf_ematch_hdr, each with its data.
func (q *Queue) addEmatches(ad *netlink.AttributeDecoder, filter string) {
	const treeList, header = 2, 8
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != treeList {
			return
		}
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			b := ad.Bytes()
			if len(b) < header {
				q.deeper("ematch of %s (%s)", filter, unread)
				return
			}
			number := int(binary.NativeEndian.Uint16(b[2:]))
			kind := fmt.Sprintf("%d", number)
			if number < len(ematchNames) {
				kind = ematchNames[number]
			}
			if why, deeper := looksDeeper(partEmatch, kind, b[header:]); deeper {
				q.deeper("ematch %s of %s (%s)", kind, filter, why)
			}
		})
	})
}

// deeper keeps the first part that looks deeper.
func (q *Queue) deeper(format string, args ...any) {
	if q.LooksDeeper == "" {
		q.LooksDeeper = fmt.Sprintf(format, args...)
	}
}

// handle writes a handle as tc does.
func handle(h uint32) string {
	switch {
	case h == 0:
		return "root"
	case h == tcClsactEgress:
		return "egress"
	case h&minor == 0:
		return fmt.Sprintf("%x:", h>>16)
	}
	return fmt.Sprintf("%x:%x", h>>16, h&minor)
}
