// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xdp.bpf.c: the XDP way. A packet of an armed flow is rewritten and redirected to
 * its egress; any other goes up to TC ingress untouched.
 */
#include "verdict.h"
#include "parse.h"
#define LOAD_CONTEXT struct xdp_md
#define LOAD_BYTES bpf_xdp_load_bytes
#include "odd.h"
#include "edit.h"
#include "sample.h"
#include "meter.h"

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
	struct place at = {};
	enum reason reason = flow_admit(&w->key, &w->in6, &at);
	struct slot *s;

	if (reason) {
		if (over_rate(reason))
			reason = REASON_POLICED;
		sample_keep(&w->key, &w->in6, about(reason, 0, 0));
		return reason;
	}
	s = &bucket_at(at.bucket)->way[at.way % WAYS];
	s->count = 1;
	if (ctl.threshold > 1)
		return REASON_BELOW_THRESHOLD;
	s->given = 1;
	return s->why = REASON_LEARNING;
}

static __always_inline int out(const struct frame *f, enum reason reason, int verdict)
{
	return leave(tally_of(this_cpu(), STAGE_XDP, f->port), reason, verdict);
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

/* When the lease ends, hits of this NAPI poll may still wait in the devmap's bulk queue
 * (bq_enqueue()): a packet given to the kernel now would overtake them. So the flow stays
 * fast until the poll of its last hit has ended (health.bpf.c), but for 20 ms at most.
 * slot.count is twice the polls of this CPU by then that sent to the same device and were seen to end,
 * plus one. */
static __always_inline int poll_goes_on(struct slot *s, __u32 port)
{
	struct transmit *t = transmit_of(this_cpu(), s->flags & SLOT_LSP ? ctl.imposer : s->oif);
	__u32 last = s->count, now = t->polls << 1 | 1;

	if ((last && now != last) || passed(s->lease + ctl.hz / 50 + 1, now_jiffies()))
		return 0;
	if (!t->waits) {
		t->waits = port;
		t->bulks = 0;
	}
	s->count = now;
	return 1;
}

/* While everything is the kernel's, and for a group's MAC, no packet counts. */
static __always_inline enum reason excluded(const struct frame *f)
{
	if (ctl.paused)
		return REASON_PAUSED;
	return is_group(f) ? REASON_NOT_HOST : REASON_HIT;
}

/* Why a frame that holds no whole IP header and what flows are told apart by is not for us. */
static __always_inline enum reason why_not_whole(const struct frame *f)
{
	__u32 type;

	if (!within(f, f->data, ETH_HLEN))
		return REASON_MALFORMED;
	type = ether_type(f);
	return type == wire16(ETH_P_IP) || type == wire16(ETH_P_IPV6) ? REASON_RUNT : why_not_ip(type);
}

/* Out to the kernel by a reason that no slot remembers, unless it is over its rate; HIT: it is
 * still to be found. It asks for the context alone, and so for no register on the way of a hit.
 * Not static, as flow_close() is not. */
__noinline int refused(struct xdp_md *ctx, __u32 reason)
{
	struct frame f;

	f.data = (void *)(long)ctx->data;
	f.end = (void *)(long)ctx->data_end;
	f.port = ctx->ingress_ifindex;
	if (!reason)
		reason = ctl.paused ? REASON_PAUSED : why_not_whole(&f);
	/* the rest of a long frame is in fragments, which TC need not care about */
	if ((reason == REASON_MALFORMED || reason == REASON_RUNT) && bpf_xdp_get_buff_len(ctx) > f.end - f.data)
		return punt(ctx, &f, 0, REASON_TC_WAY);
	if (!is_odd(reason) && over_rate(reason))	/* of those refuse() has asked */
		reason = REASON_POLICED;
	if (reason != REASON_PAUSED && reason != REASON_TCP_IMPLAUSIBLE)
		sample_frame(f.data, f.end, f.port, 0, reason);
	return out(&f, reason, reason == REASON_POLICED || reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
}

/* What parse.h found a reason in. */
static __always_inline int refuse(struct xdp_md *ctx, struct frame *f, enum reason reason)
{
	if (ctl.paused)
		return out(f, REASON_PAUSED, XDP_PASS);
	if (is_group(f))
		return refused(ctx, REASON_NOT_HOST);
	if (reason == REASON_TCP_CLOSE || reason == REASON_TCP_SYN) {
		if (over_rate(reason))
			return out(f, REASON_POLICED, XDP_DROP);
		reason = close_by(f, reason);
		return out(f, reason, reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
	}
	if (is_odd(reason))
		reason = over_rate(reason) ? REASON_POLICED : close_odd(ctx, ctx->ingress_ifindex, bpf_xdp_get_buff_len(ctx), reason);
	return refused(ctx, reason);
}

/* No slot has the packet's key. */
static __always_inline int unknown(struct xdp_md *ctx, struct frame *f)
{
	struct flow flow = { .key = f->key, .in6 = f->in6 };
	enum reason reason = excluded(f);

	if (reason)
		return refused(ctx, reason);
	if (f->proto == IPPROTO_TCP && ctl.tcp_off)
		return out(f, REASON_TCP_OFF, XDP_PASS);
	reason = claim_aside(&flow);
	if (reason == REASON_POLICED)
		return out(f, reason, XDP_DROP);
	return punt(ctx, f, 0, reason);
}

/* The slot is not simply good. HIT: it may be used all the same. */
static __always_inline enum reason doubt(struct frame *f, struct slot *s, struct place *at)
{
	enum reason reason = excluded(f);

	if (reason)
		return reason;
	if (f->proto == IPPROTO_TCP && ctl.tcp_off)
		return REASON_TCP_OFF;
	reason = flow_check(s, f);
	if (reason && (reason != REASON_LEASE_ENDED || flow_differs(s, f) || !(s->flags & SLOT_XDP) || !poll_goes_on(s, f->port)))
		return flow_slow(s, f, reason);
	if (!(s->flags & SLOT_XDP))
		return REASON_TC_WAY;
	return s->flags & SLOT_DRAIN && !flow_drained(s, at) ? REASON_DRAINING : REASON_HIT;
}

/* Family and, for most packets, protocol are constants here: each copy of this function does
 * without the others' work. */
static __always_inline int way(struct xdp_md *ctx, struct frame *f, const __u8 family)
{
	enum reason reason;
	struct rewrite rw;
	__u32 now = now_jiffies();	/* before anything is in registers */
	struct place at;
	struct slot *s;

	frame_point(f, family);
	f->len = f->end - f->data;
	reason = f->family == 4 ? parse_ipv4(f) : parse_ipv6(f);
	if (rarely(reason))
		return refuse(ctx, f, reason);
	take_key(f);
	s = flow_find(&f->key, &f->in6, &at);
	if (rarely(!s))
		return unknown(ctx, f);
	if (rarely(!flow_good(s, f, now))) {
		if (flow_young(s, now) && !excluded(f) && !(f->proto == IPPROTO_TCP && ctl.tcp_off)) {
			flow_one_more(s, f, now);
			return out(f, REASON_BELOW_THRESHOLD, XDP_PASS);
		}
		reason = doubt(f, s, &at);
		if (reason)
			return punt(ctx, f, s, reason);
	}
	if (rarely(f->l3_len > s->mtu)) {
		flow_evidence(s, f);
		s->why = REASON_OVER_MTU;
		if (over_rate(REASON_OVER_MTU))
			return out(f, REASON_POLICED, XDP_DROP);
		return out(f, REASON_OVER_MTU, XDP_PASS);
	}
	rewrite_copy(&rw, s, f->family);
	if (rarely(flow_torn(s, &at)))
		return out(f, REASON_BUSY, XDP_PASS);
	edit(f, &rw, 1);
	flow_count(s, f, 1, f->l3_len);
	/* Padding or a trailer, which may go on in fragments: the kernel would not forward it
	 * (pskb_trim_rcsum in ip_rcv_core). Not seen is one that begins with the first fragment.
	 * bpf_xdp_adjust_tail() refuses only what would cut into the Ethernet header. */
	if (rarely(trailer_of(f)) &&
	    bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + f->l3_len) - (int)bpf_xdp_get_buff_len(ctx)))
		return out(f, REASON_MALFORMED, XDP_DROP);
	/* Last, since a call makes a program put aside what it holds in registers. It fails if
	 * the egress went this very moment; before the daemon takes one away it makes sure that
	 * no entry names it (Plane.withdraw()). The flow's next packet is the kernel's. */
	if (rarely(bpf_redirect_map(&tx, rw.tx, XDP_DROP) != XDP_REDIRECT)) {
		s->state = SLOT_SEEN;
		s->why = REASON_EGRESS_GONE;
		return out(f, REASON_EGRESS_GONE, XDP_DROP);
	}
	return out(f, REASON_HIT, XDP_REDIRECT);
}

/* All but IPv4. */
static __always_inline int other(struct xdp_md *ctx, struct frame *f)
{
	if (!frame_fits(f, 6) || ether_type(f) != wire16(ETH_P_IPV6))
		return refused(ctx, REASON_HIT);
	frame_point(f, 6);
	f->proto = protocol_of(f);
	return way(ctx, f, 6);
}

SEC("xdp.frags")
int shunt_xdp(struct xdp_md *ctx)
{
	struct frame f;

	f.data = (void *)(long)ctx->data;
	f.end = (void *)(long)ctx->data_end;
	f.port = ctx->ingress_ifindex;
	if (rarely(!frame_fits(&f, 4) || ether_type(&f) != wire16(ETH_P_IP)))
		return other(ctx, &f);
	f.proto = ((struct iphdr *)(f.data + ETH_HLEN))->protocol;
	if (mostly(f.proto == IPPROTO_UDP)) {
		apart(IPPROTO_UDP);
		f.proto = IPPROTO_UDP;
		return way(ctx, &f, 4);
	}
	forget(f.proto);
	if (f.proto == IPPROTO_TCP) {
		apart(IPPROTO_TCP);
		f.proto = IPPROTO_TCP;
		return way(ctx, &f, 4);
	}
	apart(0);
	return way(ctx, &f, 4);
}

char _license[] SEC("license") = "Dual BSD/GPL";
