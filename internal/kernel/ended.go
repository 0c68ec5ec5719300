// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// ctDelete is IPCTNL_MSG_CT_DELETE of ctnetlink.
const ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

// endedEarly is a classic BPF program by which the kernel delivers, of all connections that
// end, only those that had time left: conntrack -D, a table that overflows, an address
// that masquerading lost, a port that is used again. A connection that ended by its timeout
// is announced without one (ctnetlink_dump_timeout() skips zeros), and no entry of it is
// good any more: a lease is at most half of the time that was left. So the end of ordinary
// connections, however many, costs no more than the kernel's making of the message.
//
// The attribute is found by an extension (bpf_skb_get_nlattr() in net/core/filter.c), behind
// the headers of netlink and nfnetlink.
var endedEarly = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + nl.SizeofNfgenmsg},
	{Code: unix.BPF_LDX | unix.BPF_IMM, K: ctaTimeout},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: skfNlattr},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// skfNlattr is SKF_AD_OFF + SKF_AD_NLATTR (include/uapi/linux/filter.h).
const skfNlattr = 0xfffff000 + 12

// decodeDestroyed tells of a connection that was deleted.
func decodeDestroyed(m netlink.Message) (Event, bool, error) {
	if m.Header.Type != ctDelete {
		return Event{}, false, nil
	}
	c, err := decodeConnection(m)
	return Event{Kind: EventConntrack, Deleted: true, Ended: [2]Tuple{c.Original, c.Reply}}, true, err
}
