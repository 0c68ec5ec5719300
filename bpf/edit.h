/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * edit.h: the only writer of packet bytes. A rewrite is a private copy of what a
 * slot says, taken before the first write; everything that can fail was checked
 * before. Checksums are updated by precomputed deltas (csum.h), so an error that a
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
	__u16 sport, dport;
	__u16 l3_delta, l4_delta;
	__u8 mac[12];		/* destination, source */
	__u8 flags, dscp;
	struct flow_words out6;	/* IPv6 only */
};

static __always_inline void rewrite_copy(struct rewrite *rw, const struct slot *s, __u8 family)
{
	__builtin_memcpy(rw, &s->saddr, 28);	/* up to smac_out: same order in both */
	rw->flags = s->flags;
	rw->dscp = s->dscp_out;
	if (family == 6)
		rw->out6 = s->out6;
}
_Static_assert(__builtin_offsetof(struct rewrite, flags) == 28, "rewrite");
_Static_assert(__builtin_offsetof(struct slot, oif) - __builtin_offsetof(struct slot, saddr) == 28, "slot");

static __always_inline void edit_ethernet(struct frame *f, const struct rewrite *rw)
{
	void *to = f->eth;
	const void *from = rw->mac;

	*(dword *)to = *(dword *)from;
	*(word *)(to + 8) = *(word *)(from + 8);
}

/* TTL, DSCP (ECN stays: RFC 3168), addresses. */
static __always_inline void edit_ipv4(struct frame *f, const struct rewrite *rw)
{
	struct iphdr *ip = f->l3;
	word *w = f->l3;
	__u32 ttl = w[2];	/* and protocol and checksum (little endian) */

	ip->tos = rw->dscp | (f->tos & 3);
	w[2] = ((ttl & 0xffff) - 1) | (__u32)csum_update(ttl >> 16, rw->l3_delta) << 16;
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
 * the checksum: in TC it may not be. UDP: 0 means none, and a computed 0 is sent as
 * 0xffff (RFC 768, RFC 8200 8.1). */
static __always_inline void edit_l4(struct frame *f, const struct rewrite *rw, const int whole)
{
	__u16 *l4 = f->l4, sum;

	switch (f->key.proto) {
	case IPPROTO_UDP:
		*(word *)l4 = *(word *)&rw->sport;
		if (!whole || !l4[3])
			break;
		sum = csum_update(l4[3], rw->l4_delta);
		l4[3] = sum ? sum : 0xffff;
		break;
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
	edit_ethernet(f, rw);
	if (f->key.family == 4)
		edit_ipv4(f, rw);
	else
		edit_ipv6(f, rw);
	if (rw->flags & SLOT_NAT)
		edit_l4(f, rw, whole);
}

#endif
