/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * relabel.h: makes of a labelled frame what mpls.h found. The only writer of labels, as edit.h
 * is of all else. First everything is judged, then what stays is changed where it lies, then
 * the frame grows or shrinks in front, and new labels and the Ethernet header go there.
 *
 * Read by mpls.bpf.c.
 */
#ifndef SHUNT_RELABEL_H
#define SHUNT_RELABEL_H

#include "mpls.h"
#include "edit.h"

/* What becomes of the frame, judged but not yet written. */
struct relabel {
	__u32 at;		/* from here on the old frame stays */
	__u32 bottom;		/* what stays there is the payload alone */
	__u32 version;		/* of the payload, if that is so */
	__u32 ttl, tc, tos;	/* of what is on top there */
	__u32 dscp, hash;	/* of the packet, if the NHLFE needs them */
};

/* The IP header that lies open, with what uniform pops and the NHLFE say of its TOS. */
static __always_inline enum reason judge_payload(const struct walk *w, const struct nhlfe *n, struct relabel *r,
						 const void *data, const void *end)
{
	const __u8 *ip = data + (w->top & NEAR);

	r->version = version_at(data, end, w->top);
	if (!r->version || (w->family && w->family != r->version) || (const void *)(ip + sizeof(struct iphdr)) > end)
		return REASON_MPLS_PAYLOAD;
	r->ttl = r->version == 4 ? ip[8] : ip[7];
	r->tos = tos_at(data, end, w->top, r->version);
	r->tos = handed(w, r->tos >> 2) << 2 | (r->tos & 3);	/* ECN stays (RFC 3168) */
	if (n->flags & NHLFE_SET_DSCP)
		r->tos = n->dscp << 2 | (r->tos & 3);
	else if (n->flags & NHLFE_MAP_DSCP)
		r->tos = (mapped(n->dscp, tc_in(w->popped)) & 63) << 2 | (r->tos & 3);
	return REASON_HIT;
}

/* The label that lies open, or lay there before. */
static __always_inline enum reason judge_label(struct xdp_md *ctx, const struct walk *w, const struct nhlfe *n,
					       struct relabel *r)
{
	if (n->flags & (NHLFE_SET_DSCP | NHLFE_MAP_DSCP))
		return REASON_MPLS_MALFORMED;
	r->ttl = ttl_in(w->lse);
	r->tc = tc_in(w->lse);
	if (n->flags & NHLFE_SET_TC) {
		r->tc = n->tc;
	} else if (n->flags & NHLFE_MAP_TC) {
		int dscp = dscp_below(ctx, w->top, w->lse, 0);

		if (dscp < 0)
			return -dscp;
		r->tc = mapped(n->tc, dscp) & 7;
	}
	return REASON_HIT;
}

/* Lowers a TTL by one, for a packet that is forwarded (RFC 3032 2.4.2). */
static __always_inline enum reason lower(__u32 *ttl)
{
	if (*ttl <= 1)
		return *ttl ? REASON_MPLS_TTL : REASON_MPLS_TTL_ZERO;
	--*ttl;
	return REASON_HIT;
}

/* The TTL of what is on top, as it goes out: RFC 3443. A payload's is never raised: that cannot
 * feed a loop, and is the same wherever the tunnel's other end was uniform too. */
static __always_inline enum reason judge_ttl(const struct walk *w, const struct nhlfe *n, struct relabel *r)
{
	enum reason reason;
	__u32 ttl = r->ttl;

	if (w->bare)
		return ttl ? REASON_HIT : REASON_MPLS_TTL_ZERO;
	if (w->model != NONE && !n->pushes) {	/* penultimate hop: the label's own is checked in any model */
		ttl = ttl_in(w->popped);
		reason = lower(&ttl);
		if (reason || w->model & NHLFE_SHORT_PIPE)
			return reason;
		if (w->model & NHLFE_PIPE) {
			ttl = r->ttl;
			reason = lower(&ttl);
		}
	} else {
		if (w->bottom && w->ceiling != NONE)
			ttl = w->ceiling;
		reason = lower(&ttl);
	}
	if (!w->bottom || ttl < r->ttl)
		r->ttl = ttl;
	return reason || r->ttl ? reason : REASON_MPLS_TTL_ZERO;
}

/* Everything that can be said against sending the frame. Not static, as walk() is not. */
__noinline enum reason judge(struct xdp_md *ctx, const struct walk *w, struct relabel *r)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct adjacency *a;
	const struct nhlfe *n;
	enum reason reason;
	__u32 mtu;
	int dscp;

	if (!w || !r)		/* never, but the verifier asks */
		return REASON_MPLS_MALFORMED;
	n = nhlfe_at(w->row);
	r->at = w->top;
	r->bottom = w->bottom;
	if (w->bottom) {
		if (n->flags & (NHLFE_SWAP | NHLFE_SET_TC | NHLFE_MAP_TC))
			return REASON_MPLS_MALFORMED;
		reason = judge_payload(w, n, r, data, end);
		r->tc = r->tos >> 5;
	} else {
		reason = judge_label(ctx, w, n, r);
	}
	if (reason)
		return reason;
	reason = judge_ttl(w, n, r);
	if (reason)
		return reason;
	if (n->needs & NEED_DSCP) {
		/* a rewritten DSCP is what counts */
		dscp = w->bottom ? (int)(r->tos >> 2) : dscp_below(ctx, w->top, w->lse, 0);
		if (dscp < 0)
			return -dscp;
		r->dscp = dscp;
	}
	if (n->needs & NEED_HASH)
		r->hash = hash_of(ctx, w->bare);
	if (n->flags & NHLFE_SWAP) {
		r->at += LSE;
		r->bottom = w->lse & BOTTOM;
	}
	a = adjacency_of(n->adjacency);
	if (!a->mtu)
		return REASON_MPLS_NO_ADJACENCY;
	mtu = n->mtu && n->mtu < a->mtu ? n->mtu : a->mtu;
	return w->octets + n->pushes * LSE + ETH_HLEN - r->at > mtu ? REASON_MPLS_OVER_MTU : REASON_HIT;
}

/* What stays, where it lies. IPv4's checksum follows (RFC 1624). */
static __always_inline void edit_exposed(const struct walk *w, const struct relabel *r, void *data, void *end)
{
	struct iphdr *ip = data + (w->top & NEAR);
	__u16 *h = (void *)ip;

	if (!w->bottom) {
		if ((void *)h + LSE <= end)
			*(word *)h = __builtin_bswap32(lse_with(w->lse, r->tc, r->ttl));
		return;
	}
	if ((void *)(ip + 1) > end)
		return;
	if (r->version == 4) {
		__u16 first = h[0], ttl = h[4];

		ip->tos = r->tos;
		ip->ttl = r->ttl;
		ip->check = csum_update(ip->check, csum_fold(csum_diff16(first, h[0]) + csum_diff16(ttl, h[4])));
		return;
	}
	h[0] = wire16(6 << 12 | r->tos << 4 | (wire16(h[0]) & 15));
	((__u8 *)ip)[7] = r->ttl;
}

/* New labels, the innermost first, in front of what stays. */
static __always_inline void write_labels(const struct nhlfe *n, const struct relabel *r, void *data, void *end)
{
	__u32 at = ETH_HLEN + n->pushes * LSE, tc = r->tc, bottom = r->bottom ? BOTTOM : 0;

	for (int i = 0; i < LABEL_PUSHES && i < n->pushes; i++) {
		const struct push *p = &n->push[i];
		__u32 lse = p->lse;
		word *to;

		at -= LSE;
		to = data + (at & NEAR);
		if ((void *)(to + 1) > end)
			return;
		if (p->flags & PUSH_MAP)
			tc = mapped(p->map, r->dscp) & 7;
		else if (p->flags & PUSH_TC)
			tc = tc_in(lse);
		if (!(p->flags & PUSH_TTL))
			lse |= r->ttl;
		if (p->flags & PUSH_ENTROPY)	/* its TC is 0, and none to the next */
			*to = __builtin_bswap32(entropy_label(r->hash) << 12 | bottom);
		else
			*to = __builtin_bswap32((lse & ~0xe00u) | tc << 9 | bottom);
		bottom = 0;
	}
}

static __always_inline void write_ethernet(void *data, const __u8 *macs, __u16 type)
{
	edit_macs(data, macs);
	((__u16 *)data)[6] = type;
}

enum { TTL_ONE = 1 << 24 };	/* in wire order, as a number of this machine: the last byte */

/* A plain swap, all of it in wire order: the label goes, its TC and S stay, its TTL, which is over 1, is
 * lowered. */
static __always_inline void swap_label(void *data, __u32 lse, __u32 label, const struct adjacency *a)
{
	*(word *)(data + ETH_HLEN) = label | ((lse & __builtin_bswap32(0xfff)) - TTL_ONE);
	edit_macs(data, a->dmac);
}

static __always_inline __u16 type_of(const struct relabel *r)
{
	return r->version == 4 ? wire16(ETH_P_IP) : wire16(ETH_P_IPV6);
}

static __always_inline __u16 mpls_type(const struct nhlfe *n)
{
	return n->flags & NHLFE_UPSTREAM ? wire16(ETH_P_MPLS_MC) : wire16(ETH_P_MPLS_UC);
}

/* The frame as it goes out, once it is judged. Not static, as walk() is not. */
__noinline enum reason send_on(struct xdp_md *ctx, const struct walk *w, const struct relabel *r)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct adjacency *a;
	const struct nhlfe *n;
	int grown;

	if (!w || !r)		/* never, but the verifier asks */
		return REASON_MPLS_MALFORMED;
	n = nhlfe_at(w->row);
	edit_exposed(w, r, data, end);
	grown = (int)(n->pushes * LSE + ETH_HLEN) - (int)r->at;
	if (grown && bpf_xdp_adjust_head(ctx, -grown))
		return REASON_MPLS_NO_ROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end)
		return REASON_MPLS_NO_ROOM;
	a = adjacency_of(n->adjacency);
	write_labels(n, r, data, end);
	write_ethernet(data, a->dmac, n->pushes || !r->bottom ? mpls_type(n) : type_of(r));
	if (bpf_redirect_map(&tx, a->tx, XDP_DROP) != XDP_REDIRECT)
		return REASON_MPLS_EGRESS_GONE;
	count_segment(&segment_at(segments_of(this_cpu()), n->segment)->out, w->octets + grown);
	return REASON_MPLS_SWITCHED;
}

/* The labels are gone, and the packet is what it was, on the port it came in by. That is not
 * forwarding: no TTL is checked (RFC 3443 3.5). Not static, as walk() is not. */
__noinline enum reason deliver(struct xdp_md *ctx, const struct walk *w, struct relabel *r)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 macs[2 * ETH_ALEN] __attribute__((aligned(8)));
	const struct nhlfe *n;
	enum reason reason;

	if (!w || !r)		/* never, but the verifier asks */
		return REASON_MPLS_MALFORMED;
	n = nhlfe_at(w->row);	/* without one: row 0, which says nothing */
	if (!w->bottom || data + ETH_HLEN > end || n->flags & (NHLFE_SET_TC | NHLFE_MAP_TC))
		return REASON_MPLS_MALFORMED;
	__builtin_memcpy(macs, data, sizeof(macs));
	reason = judge_payload(w, n, r, data, end);
	if (reason)
		return reason;
	if (w->ceiling < r->ttl)
		r->ttl = w->ceiling;
	edit_exposed(w, r, data, end);
	if (bpf_xdp_adjust_head(ctx, w->top - ETH_HLEN))
		return REASON_MPLS_NO_ROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end)
		return REASON_MPLS_MALFORMED;
	write_ethernet(data, macs, type_of(r));
	return REASON_MPLS_DELIVERED;
}

#endif
