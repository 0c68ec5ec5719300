/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * edit.h: the only writer of packet bytes. A rewrite is a private copy of what a
 * slot says, taken before the first write; what can fail was checked before, but
 * for two things that drop the packet: its trailer cannot be cut off, its egress went (xdp.bpf.c).
 * Checksums are updated by precomputed deltas (csum.h), so an error that a
 * packet came with goes on with it, as through the kernel.
 *
 * In TC the L4 checksum may be a partial one, or the skb may carry a sum of the
 * frame: there only bpf_l4_csum_replace() touches it (tc.bpf.c).
 */
#ifndef SHUNT_EDIT_H
#define SHUNT_EDIT_H

#include "frame.h"
#include "csum.h"

struct rewrite {
	__u32 saddr, daddr;
	__u16 sport, dport, l4_delta, tx;
	__u8 mac[12];		/* destination, source */
	__u32 l3_step;
	__u8 state, dscp_in;	/* not used: they are in one word with the next */
	__u8 flags, dscp;
	struct flow_words out6;	/* IPv6 only */
};

/* The fields of line 1 stand in the same order in both: four loads, which stay in registers. */
static __always_inline void rewrite_copy(struct rewrite *rw, const struct slot *s, __u8 family)
{
	const volatile dword *from = (const void *)&s->saddr;
	dword *to = (void *)rw;

	for (int i = 0; i < 4; i++)
		to[i] = from[i];
	*(word *)&rw->state = *(const volatile word *)&s->state;
	if (family == 6)
		rw->out6 = s->out6;
}
_Static_assert(__builtin_offsetof(struct rewrite, state) == 32, "rewrite");
_Static_assert(__builtin_offsetof(struct slot, packets) - __builtin_offsetof(struct slot, saddr) == 32, "slot");

/* Destination and source. */
static __always_inline void edit_macs(void *to, const void *from)
{
	*(dword *)to = *(const dword *)from;
	*(word *)(to + 8) = *(const word *)(from + 8);
}

/* TTL, protocol and checksum are one number, little endian. Its complement grows by the
 * checksum's delta, whose carry comes round (RFC 1624 eqn. 3), and by 1, which makes the
 * TTL one less; that was over 1, so nothing is carried from there into the checksum. */
static __always_inline __u32 l3_step(__u16 delta) { return (__u32)delta << 16 | 1; }

/* TTL, DSCP (ECN stays: RFC 3168), addresses. */
static __always_inline void edit_ipv4(struct frame *f, const struct rewrite *rw)
{
	struct iphdr *ip = f->l3;
	word *w = f->l3;
	__u64 sum = (__u64)~w[2] + rw->l3_step;

	ip->tos = rw->dscp | (ip->tos & 3);
	w[2] = ~(sum + (sum >> 32 << 16));
	*(dword *)(w + 3) = *(dword *)&rw->saddr;
}

static __always_inline void edit_ipv6(struct frame *f, const struct rewrite *rw)
{
	struct ipv6hdr *ip = f->l3;
	__u32 *w = f->l3;

	w[0] = (w[0] & ~__builtin_bswap32(0x0fc00000)) | __builtin_bswap32((__u32)rw->dscp << 20);
	ip->hop_limit--;
	if (!(rw->flags & SLOT_NAT))
		return;
	w[2] = rw->out6.saddr[0];
	w[3] = rw->out6.saddr[1];
	w[4] = rw->out6.saddr[2];
	w[5] = rw->saddr;
	w[6] = rw->out6.daddr[0];
	w[7] = rw->out6.daddr[1];
	w[8] = rw->out6.daddr[2];
	w[9] = rw->daddr;
}

/* Ports, or the ICMP id; other protocols keep their first bytes. And, if it is `whole`,
 * the checksum: in TC it may not be. */
static __always_inline void edit_l4(struct frame *f, const struct rewrite *rw, const int whole)
{
	__u16 *l4 = f->l4;

	if (mostly(f->proto == IPPROTO_UDP)) {
		*(word *)l4 = *(word *)&rw->sport;
		if (whole && l4[3])
			l4[3] = csum_update_udp(l4[3], rw->l4_delta);
		return;
	}
	switch (f->proto) {
	case IPPROTO_TCP:
		*(word *)l4 = *(word *)&rw->sport;
		if (whole && within(f, l4, sizeof(struct tcphdr)))	/* parse_tcp() has seen to it */
			l4[8] = csum_update(l4[8], rw->l4_delta);
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		l4[2] = rw->sport;
		if (whole)
			l4[1] = csum_update(l4[1], rw->l4_delta);
	}
}

static __always_inline void edit(struct frame *f, const struct rewrite *rw, const int whole)
{
	edit_macs(f->data, rw->mac);
	not_yet();
	if (f->family == 4)
		edit_ipv4(f, rw);
	else
		edit_ipv6(f, rw);
	if (rw->flags & SLOT_NAT)
		edit_l4(f, rw, whole);
}

#endif
