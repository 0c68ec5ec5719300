// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Targets that do the same to all packets of a flow, or nothing to them: all return XT_CONTINUE.
var (
	xCounts = map[string]bool{"AUDIT": true, "LED": true, "LOG": true, "NFLOG": true, "TEE": true, "TRACE": true, "ULOG": true}
	xActs   = map[string]bool{"CHECKSUM": true, "CLASSIFY": true, "CONNSECMARK": true, "CT": true, "DNPT": true, "DSCP": true,
		"HMARK": true, "NOTRACK": true, "SECMARK": true, "SNPT": true}
	xTerminal = map[string]bool{ // they drop, or accept
		"REJECT": true, "TPROXY": true, "DNAT": true, "SNAT": true, "MASQUERADE": true, "REDIRECT": true, "NETMAP": true}
	// Targets that make a field what they were told, whatever it was. What was learned of a packet
	// that had the right value says nothing of another one.
	xSets  = map[string]string{"ECN": "ECN", "HL": "hop limit", "TTL": "TTL", "TCPMSS": "TCP option", "TCPOPTSTRIP": "TCP option", "SYNPROXY": "synproxy"}
	xWrite = map[string]func(r *rule, revision int, info []byte){
		"NFQUEUE":  func(r *rule, _ int, _ []byte) { r.queue() },
		"TOS":      (*rule).xSetTOS,
		"MARK":     (*rule).xSetMark,
		"CONNMARK": (*rule).xSetConnmark,
		"SET":      (*rule).xSetIPSet,
		"IDLETIMER": func(r *rule, _ int, info []byte) { // struct idletimer_tg_info and _v1 begin with timeout in seconds and label
			r.counts = "IDLETIMER"
			if len(info) < 32 {
				r.unreadTarget("IDLETIMER")
				return
			}
			r.keep(keep{what: "idle timer " + unix.ByteSliceToString(info[4:32]) + " ends", time: seconds(info)}, r.match)
		},
		"RATEEST": func(r *rule, _ int, info []byte) { // xt_rateest_tg(): struct xt_rateest_target_info begins with the name
			r.counts = "RATEEST"
			r.feed("rateest "+unix.ByteSliceToString(info[:min(16, len(info))]), r.match)
		},
	}
)

// xTarget reads a target of iptables, legacy or by way of nftables.
func (r *rule) xTarget(name string, revision int, info []byte) {
	write := xWrite[name]
	sets, varies := xSets[name]
	switch {
	case name == "":
	case write != nil:
		write(r, revision, info)
	case xCounts[name]:
		r.counts = name
	case xTerminal[name]:
		r.send(terminal, "")
	case varies:
		r.acts = true
		r.vary(sets)
	case xActs[name]:
		r.acts = true
	default:
		r.acts = true
		r.vary(fmt.Sprintf("target %q, which is not known", name))
	}
}

func (r *rule) unreadTarget(name string) {
	r.acts = true
	r.vary(fmt.Sprintf("target %q in a form that is not known", name))
}

// xSetTOS is tos_tg(): (field & ~mask) ^ value. struct xt_tos_target_info: value, mask.
func (r *rule) xSetTOS(_ int, info []byte) {
	if len(info) < 2 {
		r.unreadTarget("TOS")
		return
	}
	r.acts = true
	if (info[0]|info[1])&ecn != 0 {
		r.vary("ECN")
	}
}

// xSetMark is mark_tg(): (mark & ~mask) ^ value. struct xt_mark_tginfo2: value, mask. Bits of the
// value that the mask does not clear are turned over.
func (r *rule) xSetMark(revision int, info []byte) {
	if revision != 2 || len(info) < 8 {
		r.unreadTarget("MARK")
		return
	}
	r.acts = true
	if value, mask := binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:]); value&^mask != 0 {
		r.feed("packet marks", r.match)
	}
}

// xSetConnmark is connmark_tg(): it sets the connection's mark, saves the packet's there, or
// restores it from there. struct xt_connmark_tginfo1: ctmark, ctmask, nfmask, mode; _tginfo2 has
// shift_dir and shift_bits in front of mode. What turns over or moves bits does so with each packet.
func (r *rule) xSetConnmark(revision int, info []byte) {
	const shift, set, save, restore = 13, 0, 1, 2
	mode := 12
	if revision == 2 {
		mode = 14
	}
	if revision < 1 || revision > 2 || len(info) <= mode || info[mode] > restore {
		r.unreadTarget("CONNMARK")
		return
	}
	r.acts = true
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(info[at:]) }
	value, ctmask, nfmask := word(0), word(4), word(8)
	moved := revision == 2 && info[shift] != 0
	switch info[mode] {
	case set:
		if moved || value&^ctmask != 0 {
			r.vary("ct mark of itself")
		}
	case save:
		r.ask("packet marks")
		if moved || nfmask&^ctmask != 0 {
			r.vary("ct mark of itself")
		}
	case restore:
		if moved || ctmask&^nfmask != 0 {
			r.feed("packet marks", r.match)
		}
	}
}

// xSetIPSet is set_target_v0() to set_target_v3(): it puts the packet's address into an ipset or
// takes it out, and from revision 3 on may set mark, priority and queue by what is there.
// struct xt_set_info_target_v3: add_set, del_set, map_set, of which each begins with an index. A
// set may be part of another one (list:set), so all count as one.
func (r *rule) xSetIPSet(revision int, info []byte) {
	const size, none, last = 4, 0xffff, 3 // IPSET_INVALID_ID
	if revision > last || len(info) < (2+revision/last)*size {
		r.unreadTarget("SET")
		return
	}
	r.counts = "SET"
	r.feed("ipset", r.match)
	if binary.NativeEndian.Uint16(info) != none {
		r.keep(ipsetMember(revision, info), r.match)
	}
	if revision == last && binary.NativeEndian.Uint16(info[2*size:]) != none {
		r.acts = true
		r.ask("ipset")
	}
}
