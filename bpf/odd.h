/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * odd.h: TCP behind an IP header that only the kernel can deal with: options, extension
 * headers, the first fragment, a TTL that is over. Conntrack (which reassembles, and looks before the
 * TTL does) sees a SYN, FIN or RST there all the same, with its window check off for an armed
 * connection. So it is judged and closes here as any other (close.h).
 *
 * Called by XDP and TC ingress for packets that leave for such a reason. They may come in
 * pieces, so they are read by a helper; it costs nobody else anything. Limits: not found
 * are flags that are in the second fragment, and TCP behind more than EXTENSIONS headers.
 */
#ifndef SHUNT_ODD_H
#define SHUNT_ODD_H

#include "close.h"

enum { EXTENSIONS = 8, TCP_FLAGS = 13, MF = 0x2000 };

static __always_inline int is_odd(enum reason reason)
{
	return reason == REASON_TTL || reason == REASON_FRAGMENT || reason == REASON_IP_OPTIONS ||
	       reason == REASON_EXTENSION_HEADER;
}

/* What is read of a frame, and where its packet ends, from the frame's start. LOAD_BYTES(ctx, at, to, size)
 * is bpf_xdp_load_bytes() or bpf_skb_load_bytes(). */
struct odd {
	__u32 ip[15];
	__u32 end;
	__u8 tcp[TCP_FLAGS + 1];
};

/* Where TCP begins, from the frame's start; 0: nowhere that conntrack would find it. It may not
 * get to see one whose other fragments do not come. */
static __always_inline __u32 odd_tcp4(void *ctx, struct odd *o, __u32 len, __u8 *odd)
{
	const struct iphdr *ip = (void *)o->ip;
	__u32 words;

	if (LOAD_BYTES(ctx, ETH_HLEN, o->ip, sizeof(*ip)))
		return 0;
	words = o->ip[0] & 15;
	if (words < 5)
		return 0;
	if (LOAD_BYTES(ctx, ETH_HLEN, o->ip, words * 4) ||
	    csum_fold(bpf_csum_diff(0, 0, o->ip, sizeof(o->ip), 0)) != 0xffff)
		return 0;
	o->end = ETH_HLEN + wire16(ip->tot_len);
	if (ip->protocol != IPPROTO_TCP || ip->frag_off & wire16(0x1fff) || o->end > len)
		return 0;
	if (ip->frag_off & wire16(MF))
		*odd |= UNSURE;
	return ETH_HLEN + words * 4;
}

/* The same behind IPv6 extension headers (ipv6_skip_exthdr()). Options hop by hop are obeyed
 * before conntrack, by ip6_rcv_core(): some have the packet dropped, and one says how long it is
 * (RFC 2675; what GRO makes has it). */
static __always_inline __u32 odd_tcp6(void *ctx, struct odd *o, __u32 len, __u8 *odd)
{
	const struct ipv6hdr *ip = (void *)o->ip;
	__u32 at = ETH_HLEN + sizeof(*ip);
	__u8 next, head[4];

	if (LOAD_BYTES(ctx, ETH_HLEN, o->ip, sizeof(*ip)))
		return 0;
	next = ip->nexthdr;
	o->end = next == IPPROTO_HOPOPTS && !ip->payload_len ? len : at + wire16(ip->payload_len);
	if (o->end > len)
		return 0;
	for (int i = 0; i < EXTENSIONS && next != IPPROTO_TCP; i++) {
		if (LOAD_BYTES(ctx, at & 0xffff, head, sizeof(head)))
			return 0;
		switch (next) {
		case IPPROTO_HOPOPTS:
			*odd |= UNSURE;	/* fall through */
		case IPPROTO_ROUTING: case IPPROTO_DSTOPTS:
			at += (head[1] + 1) * 8;
			break;
		case IPPROTO_AH:
			at += (head[1] + 2) * 4;
			break;
		case IPPROTO_FRAGMENT:
			if (head[2] || head[3] & 0xf8)	/* RFC 8200 4.5: the offset */
				return 0;
			if (head[3] & 1)
				*odd |= UNSURE;
			at += 8;
			break;
		default:
			return 0;
		}
		next = head[0];
	}
	return next == IPPROTO_TCP ? at : 0;
}

/* Is there a SYN, FIN or RST in a frame of `len` bytes that came in by `port`, whose reason
 * is_odd()? Then `c`, which is all zero, says what. Not static, as flow_close() is not. */
__noinline int closing_odd(LOAD_CONTEXT *ctx, __u32 port, __u32 len, struct closing *c)
{
	struct odd o = {};
	__u32 at, size;
	__u16 type;

	if (!c)			/* never, but the verifier asks */
		return 0;
	c->odd = ODD;
	if (LOAD_BYTES(ctx, 0, c->dmac, sizeof(c->dmac)) || LOAD_BYTES(ctx, 2 * ETH_ALEN, &type, sizeof(type)))
		return 0;
	at = type == wire16(ETH_P_IP) ? odd_tcp4(ctx, &o, len, &c->odd) : odd_tcp6(ctx, &o, len, &c->odd);
	if (!at || LOAD_BYTES(ctx, at & 0xffff, o.tcp, sizeof(o.tcp)))
		return 0;
	/* tcp_error() finds any other INVALID; of a fragment's header the rest follows */
	size = (o.tcp[TCP_FLAGS - 1] >> 4) * 4;
	if (size < sizeof(struct tcphdr) || at + (c->odd & UNSURE ? sizeof(o.tcp) : size) > o.end)
		return 0;
	c->flags = o.tcp[TCP_FLAGS];
	c->reason = c->flags & TCP_SYN ? REASON_TCP_SYN : REASON_TCP_CLOSE;
	c->seq = __builtin_bswap32(*(word *)(o.tcp + 4));
	c->ack = __builtin_bswap32(*(word *)(o.tcp + 8));
	*(word *)&c->key.sport = *(word *)o.tcp;
	if (type == wire16(ETH_P_IP)) {
		c->key.kind = kind_of(port, 4, IPPROTO_TCP);
		c->key.saddr = o.ip[3];
		c->key.daddr = o.ip[4];
	} else {
		c->key.kind = kind_of(port, 6, IPPROTO_TCP);
		__builtin_memcpy(&c->in6.saddr, o.ip + 2, sizeof(c->in6.saddr));
		__builtin_memcpy(&c->in6.daddr, o.ip + 6, sizeof(c->in6.daddr));
		c->key.saddr = o.ip[5];
		c->key.daddr = o.ip[9];
	}
	return c->flags & (TCP_SYN | TCP_FIN | TCP_RST);
}

#endif
