// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// XTable is a table of legacy iptables (not of iptables-nft, whose rules are nftables).
type XTable struct {
	Family uint8             // unix.NFPROTO_IPV4 or NFPROTO_IPV6
	Name   string            // "raw", "mangle", "nat", "filter", "security"
	Hooks  map[uint32]string // chain of each hook, by NF_INET_*
	Chains map[string][]XRule
}

// XExtension is a match or a target. Info is its own data, as its revision lays it out.
type XExtension struct {
	Name     string
	Revision uint8
	Info     []byte
}

// Verdicts of XRule.Verdict beside NF_DROP (0), NF_ACCEPT (1), NF_QUEUE (3) and
// XReturn: what a standard target does.
const (
	XNone   = -100 // Target says
	XJump   = -101 // to Chain
	XGoto   = -102 // to Chain, without coming back
	XReturn = -5
)

// XRule is a rule. Addresses and protocols that are inverted (!) are left out of the fields.
type XRule struct {
	In, Out             string // a trailing + stands for the rest; "": any
	NotIn, NotOut       string // the same, inverted
	Source, Destination netip.Prefix
	Proto               uint8 // 0: any
	Plain               bool  // the fields above say all that its struct ipt_ip asks for
	Fragments           bool  // -f: second and further fragments, or nothing at all
	Matches             []XExtension
	Target              XExtension // if Verdict is XNone
	Verdict             int
	Chain               string
}

// xFamily is how one of the two families lays its tables out
// (include/uapi/linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h).
type xFamily struct {
	family       uint8
	domain       int
	level        int    // of getsockopt
	names        string // file with the names of the tables that are there
	address      int    // bytes
	ip           int    // bytes of struct ipt_ip
	flags, entry int    // offset of the flags in it; bytes of struct ipt_entry
	proto        int    // offset
	noReturn     byte   // IPT_F_GOTO
	fragment     byte   // IPT_F_FRAG; 0: there is no such flag
	hasProto     byte   // IP6T_F_PROTO, without which the protocol does not count; 0: it always does
}

var xFamilies = []xFamily{
	{family: unix.NFPROTO_IPV4, domain: unix.AF_INET, level: unix.SOL_IP, names: "/proc/thread-self/net/ip_tables_names",
		address: 4, ip: 84, proto: 80, flags: 82, entry: 112, noReturn: 2, fragment: 1},
	{family: unix.NFPROTO_IPV6, domain: unix.AF_INET6, level: unix.SOL_IPV6, names: "/proc/thread-self/net/ip6_tables_names",
		address: 16, ip: 136, proto: 128, flags: 131, entry: 168, noReturn: 4, hasProto: 1},
}

// ReadXTables reads the tables of legacy iptables that are there in this network
// namespace; it makes none. It needs CAP_NET_ADMIN.
func ReadXTables() ([]XTable, error) {
	var tables []XTable
	for _, f := range xFamilies {
		names, err := os.ReadFile(f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("iptables: %w", err)
		}
		for _, name := range strings.Fields(string(names)) {
			t, err := f.read(name)
			if err != nil {
				return nil, fmt.Errorf("iptables table %s: %w", name, err)
			}
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// The options of getsockopt, and struct ipt_getinfo, alike in both families.
const (
	xGetInfo    = 64
	xGetEntries = 65
	xNameLen    = 32
	xHooks      = 5
	xHeader     = 40 // struct ipt_get_entries: name, size, and room for the alignment
)

type xInfo struct {
	Name                  [xNameLen]byte
	ValidHooks            uint32
	HookEntry, Underflow  [xHooks]uint32
	NumEntries, TableSize uint32
}

// xAttempts is how often a table is read again that grew meanwhile.
const xAttempts = 5

// read asks until the table did not grow between its size and itself.
func (f xFamily) read(name string) (XTable, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return XTable{}, err
	}
	defer unix.Close(fd)
	for try := 0; ; try++ {
		var info xInfo
		copy(info.Name[:xNameLen-1], name)
		if err := getsockopt(fd, f.level, xGetInfo, unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))); err != nil {
			return XTable{}, err
		}
		blob := make([]byte, xHeader+int(info.TableSize))
		copy(blob[:xNameLen-1], name)
		binary.NativeEndian.PutUint32(blob[xNameLen:], info.TableSize)
		err := getsockopt(fd, f.level, xGetEntries, blob)
		if errors.Is(err, unix.EAGAIN) && try < xAttempts {
			continue
		}
		if err != nil {
			return XTable{}, err
		}
		return f.decode(name, info, blob[xHeader:])
	}
}

func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

var xHookNames = [xHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// xEntry is a rule where it stands in the table.
type xEntry struct {
	at     int
	rule   XRule
	jump   int    // offset; -1: none
	header string // of a chain of the user's own that begins behind it
}

// decode takes a table apart: built-in chains begin at their hooks, the others behind an
// ERROR target that carries the name; another one ends the table.
func (f xFamily) decode(name string, info xInfo, blob []byte) (XTable, error) {
	t := XTable{Family: f.family, Name: name, Hooks: map[uint32]string{}, Chains: map[string][]XRule{}}
	begins := map[int]string{} // chain by the offset of its first rule
	for hook, at := range info.HookEntry {
		if info.ValidHooks&(1<<hook) != 0 {
			t.Hooks[uint32(hook)] = xHookNames[hook]
			begins[int(at)] = xHookNames[hook]
			t.Chains[xHookNames[hook]] = nil
		}
	}
	var entries []xEntry
	for at := 0; at < len(blob); {
		e, size, err := f.entryAt(blob, at)
		if err != nil {
			return t, err
		}
		if at += size; e.header != "" && at < len(blob) {
			begins[at] = e.header
			t.Chains[e.header] = nil
		}
		entries = append(entries, e)
	}
	chain := ""
	for _, e := range entries {
		if begins[e.at] != "" {
			chain = begins[e.at]
		}
		if e.header != "" {
			continue
		}
		if e.jump >= 0 {
			if e.rule.Chain = begins[e.jump]; e.rule.Chain == "" {
				return t, fmt.Errorf("jump to %d, where no chain begins", e.jump)
			}
		}
		t.Chains[chain] = append(t.Chains[chain], e.rule)
	}
	return t, nil
}

// entryAt reads struct ipt_entry, its matches and its target.
func (f xFamily) entryAt(blob []byte, at int) (e xEntry, size int, err error) {
	short := fmt.Errorf("entry at %d is cut short", at)
	if len(blob)-at < f.entry {
		return e, 0, short
	}
	b := blob[at:]
	target := int(binary.NativeEndian.Uint16(b[f.ip+4:]))
	size = int(binary.NativeEndian.Uint16(b[f.ip+6:]))
	if target < f.entry || size < target+xExtensionHeader || size > len(b) {
		return e, 0, short
	}
	e = xEntry{at: at, jump: -1, rule: f.match(b[:f.ip])}
	for m := f.entry; m < target; {
		x, n, ok := extensionAt(b[m:target])
		if !ok {
			return e, 0, short
		}
		e.rule.Matches = append(e.rule.Matches, x)
		m += n
	}
	x, _, ok := extensionAt(b[target:size])
	if !ok {
		return e, 0, short
	}
	e.setTarget(x, b[f.flags]&f.noReturn != 0, at+size)
	return e, size, nil
}

const (
	xExtensionHeader = 32 // struct xt_entry_match
	xErrorTarget     = "ERROR"
)

func extensionAt(b []byte) (x XExtension, size int, ok bool) {
	if len(b) < xExtensionHeader {
		return x, 0, false
	}
	size = int(binary.NativeEndian.Uint16(b))
	if size < xExtensionHeader || size > len(b) {
		return x, 0, false
	}
	return XExtension{Name: unix.ByteSliceToString(b[2:31]), Revision: b[31], Info: b[xExtensionHeader:size]}, size, true
}

// setTarget tells a verdict or a jump from a target of its own; next is where the table
// goes on: a jump there is none.
func (e *xEntry) setTarget(x XExtension, noReturn bool, next int) {
	switch {
	case x.Name == xErrorTarget:
		e.header = unix.ByteSliceToString(x.Info)
	case x.Name != "" || len(x.Info) < 4:
		e.rule.Verdict, e.rule.Target = XNone, x
	default:
		verdict := int(int32(binary.NativeEndian.Uint32(x.Info)))
		switch {
		case verdict == XReturn:
			e.rule.Verdict = XReturn
		case verdict < 0:
			e.rule.Verdict = -verdict - 1
		case verdict == next: // "-j" without a target
			e.rule.Verdict, e.rule.Target = XNone, XExtension{Name: ""}
		default:
			e.rule.Verdict, e.jump = XJump, verdict
			if noReturn {
				e.rule.Verdict = XGoto
			}
		}
	}
}

// Bits of invflags, alike in both families (IPT_INV_* and IP6T_INV_*).
const (
	xInvertIn     = 0x01
	xInvertOut    = 0x02
	xInvertSource = 0x08
	xInvertDest   = 0x10
	xInvertProto  = 0x40

	xInvertFragment = 0x20
)

// match reads struct ipt_ip or ip6t_ip6: addresses, their masks, interfaces, protocol
// (ip_packet_match() and ip6_packet_match()).
func (f xFamily) match(b []byte) (r XRule) {
	flags, invert := b[f.flags], b[f.flags+1]
	r.Plain = invert&^(xInvertIn|xInvertOut|xInvertFragment) == 0 && flags&^(f.noReturn|f.hasProto|f.fragment) == 0
	r.Fragments = (flags&f.fragment != 0) != (invert&xInvertFragment != 0)
	n := f.address
	address := func(at int, inverted byte) (p netip.Prefix) {
		p, whole := maskedPrefix(b[at:at+n], b[at+2*n:at+3*n])
		r.Plain = r.Plain && whole
		if invert&inverted != 0 {
			return netip.Prefix{}
		}
		return p
	}
	r.Source, r.Destination = address(0, xInvertSource), address(n, xInvertDest)
	names := b[4*n:]
	r.In, r.Out = interfaceName(names[:16], names[32:48]), interfaceName(names[16:32], names[48:64])
	if invert&xInvertIn != 0 {
		r.In, r.NotIn = "", r.In
	}
	if invert&xInvertOut != 0 {
		r.Out, r.NotOut = "", r.Out
	}
	if invert&xInvertProto == 0 && flags&f.hasProto == f.hasProto {
		r.Proto = uint8(binary.NativeEndian.Uint16(b[f.proto:]))
	}
	return r
}

// maskedPrefix is the prefix of an address that a mask leaves, up to its first hole, and
// whether that is the whole mask. The zero prefix is any address.
func maskedPrefix(address, mask []byte) (p netip.Prefix, whole bool) {
	bits := 0
	for bits < len(mask)*8 && mask[bits/8]&(0x80>>(bits%8)) != 0 {
		bits++
	}
	whole = true
	for rest := bits; rest < len(mask)*8; rest++ {
		whole = whole && mask[rest/8]&(0x80>>(rest%8)) == 0
	}
	a, ok := netip.AddrFromSlice(address)
	if bits == 0 || !ok {
		return netip.Prefix{}, whole
	}
	return netip.PrefixFrom(a, bits).Masked(), whole
}

// interfaceName is a name; a mask that leaves out its end means that anything may follow.
func interfaceName(name, mask []byte) string {
	text := unix.ByteSliceToString(name)
	n := bytes.IndexByte(append(mask[:len(mask):len(mask)], 0), 0)
	if n == 0 || n > len(text) {
		return text
	}
	return text[:n] + "+"
}
