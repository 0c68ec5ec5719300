// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xdp.bpf.c: the XDP way. A packet of an armed flow is rewritten and redirected to
 * its egress; any other goes up to TC ingress untouched.
 */
#include "verdict.h"
#include "parse.h"
#include "flow.h"
#include "edit.h"

/* TC ingress must look at this packet too. */
static __always_inline void mark(struct xdp_md *ctx)
{
	struct mark *m;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*m))) {
		ctl.no_marks = 1;
		return;
	}
	m = (void *)(long)ctx->data_meta;
	if ((void *)(m + 1) <= (void *)(long)ctx->data)
		m->magic = MARK;
}

struct flow {
	struct flow_key key;
	struct flow_words in6;
};

/* The first packet of a flow. */
static __noinline enum reason claim_aside(const struct flow *w)
{
	struct place at;
	struct slot *s = flow_claim(&w->key, &w->in6, &at);

	if (!s)
		return REASON_TABLE_FULL;
	s->count = 1;
	s->given = ctl.threshold <= 1;
	return ctl.threshold <= 1 ? REASON_LEARNING : REASON_BELOW_THRESHOLD;
}

static __always_inline int out(const struct frame *f, enum reason reason, int verdict)
{
	return leave(tally_of(STAGE_XDP, f->key.port), reason, verdict);
}

static __always_inline int punt(struct xdp_md *ctx, const struct frame *f, struct slot *s, enum reason reason)
{
	if (is_due(reason) || reason == REASON_TC_WAY || reason == REASON_DRAINING) {
		if (s)
			s->given++;
		mark(ctx);
	}
	return out(f, reason, XDP_PASS);
}

enum { BULK = 16 };	/* DEV_MAP_BULK_SIZE */

/* When the lease ends, hits of this NAPI poll may still wait in the devmap's bulk queue
 * (bq_enqueue()): a packet given to the kernel now would overtake them. So the flow stays
 * fast until its last hit was sent, as the tracepoint's counts of this CPU tell
 * (health.bpf.c), but for 20 ms at most. A full bulk says nothing: the hit may have come
 * right behind it. slot.count is twice the frames sent by then, plus one. */
static __always_inline int poll_goes_on(struct slot *s)
{
	__u32 egress = s->tx, last = s->count, now;
	struct transmit *t = bpf_map_lookup_elem(&transmits, &egress);

	if (!t || !before(now_jiffies(), s->lease + ctl.hz / 50 + 1))
		return 0;
	now = (t->sent + t->drops + t->errors) << 1 | 1;
	if (last && now != last && now - last != 2 * BULK)
		return 0;
	s->count = now;
	return 1;
}

/* `family` is a constant: the two copies of this function do without the other's work. */
static __always_inline int way(struct xdp_md *ctx, struct frame *f, const __u8 family)
{
	enum reason reason;
	struct rewrite rw;
	__u32 now = now_jiffies(), tx_index;	/* before anything is in registers */
	struct place at;
	struct slot *s;

	/* the rest of a long frame is in fragments, which TC need not care about */
	if (rarely(!frame_headers(f, family)))
		return punt(ctx, f, 0, bpf_xdp_get_buff_len(ctx) > f->len ? REASON_TC_WAY : REASON_RUNT);
	reason = family == 4 ? parse_ipv4(f) : parse_ipv6(f);
	if (rarely(reason)) {
		if (is_group(f))
			return out(f, REASON_NOT_HOST, XDP_PASS);
		if (reason == REASON_TCP_CLOSE || reason == REASON_TCP_SYN) {
			struct closing closing;

			take_key(f, family);
			closing = closing_of(f, reason);
			reason = flow_close(&closing);
			return out(f, reason, reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
		}
		if (reason == REASON_MALFORMED && bpf_xdp_get_buff_len(ctx) > f->len)
			reason = REASON_TC_WAY;
		return punt(ctx, f, 0, reason);
	}
	take_key(f, family);
	s = flow_find(&f->key, &f->in6, &at);
	if (rarely(!s || !flow_good(s, f, now))) {
		/* nothing is armed for a group's MAC, nor for TCP while it is off */
		if (is_group(f))
			return out(f, REASON_NOT_HOST, XDP_PASS);
		if (f->key.proto == IPPROTO_TCP && ctl.tcp_off)
			return out(f, REASON_TCP_OFF, XDP_PASS);
		if (!s) {
			struct flow flow = { .key = f->key, .in6 = f->in6 };

			return punt(ctx, f, 0, claim_aside(&flow));
		}
		reason = flow_check(s, f);
		if (reason && (reason != REASON_LEASE_ENDED || flow_differs(s, f) || !(s->flags & SLOT_XDP) || !poll_goes_on(s)))
			return punt(ctx, f, s, flow_slow(s, f, reason));
		if (!(s->flags & SLOT_XDP))
			return punt(ctx, f, s, REASON_TC_WAY);
		if (s->flags & SLOT_DRAIN && !flow_drained(s, &at))
			return punt(ctx, f, s, REASON_DRAINING);
	}
	if (rarely(f->l3_len > s->mtu)) {
		flow_evidence(s, f);
		s->why = REASON_OVER_MTU;
		return out(f, REASON_OVER_MTU, XDP_PASS);
	}
	rewrite_copy(&rw, s, family);
	tx_index = s->tx;
	if (rarely(flow_torn(s, &at)))
		return out(f, REASON_BUSY, XDP_PASS);
	/* an egress that went this very moment: nothing is written yet */
	if (rarely(bpf_redirect_map(&tx, tx_index, 0) != XDP_REDIRECT))
		return punt(ctx, f, s, REASON_TC_WAY);
	edit(f, &rw, 1);
	flow_count(s, f, 1, f->l3_len);
	/* Padding or a trailer, which may go on in fragments: the kernel would not forward it
	 * (pskb_trim_rcsum in ip_rcv_core). Not seen is one that begins with the first fragment.
	 * bpf_xdp_adjust_tail() refuses only what would cut into the Ethernet header. */
	if (rarely(f->len > ETH_HLEN + f->l3_len) &&
	    bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + f->l3_len) - (int)bpf_xdp_get_buff_len(ctx)))
		return out(f, REASON_MALFORMED, XDP_DROP);
	return out(f, REASON_HIT, XDP_REDIRECT);
}

SEC("xdp.frags")
int shunt_xdp(struct xdp_md *ctx)
{
	struct frame f;
	__u32 type;

	f.data = (void *)(long)ctx->data;
	f.end = (void *)(long)ctx->data_end;
	f.len = ctx->data_end - ctx->data;
	f.key.port = ctx->ingress_ifindex;
	if (rarely(ctl.paused))
		return out(&f, REASON_PAUSED, XDP_PASS);
	f.eth = f.data;
	if (rarely(!within(&f, f.eth, ETH_HLEN)))
		return out(&f, REASON_MALFORMED, XDP_PASS);
	type = ether_type(&f);
	if (mostly(type == wire16(ETH_P_IP)))
		return way(ctx, &f, 4);
	forget(type);
	if (type == wire16(ETH_P_IPV6))
		return way(ctx, &f, 6);
	return out(&f, why_not_ip(type), XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
