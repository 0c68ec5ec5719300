// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xdp.bpf.c: the XDP way. A packet of an armed flow is rewritten and redirected to
 * its egress; any other goes up to TC ingress untouched.
 */
#include "verdict.h"
#include "parse.h"
#define LOAD_CONTEXT struct xdp_md
#define LOAD_BYTES bpf_xdp_load_bytes
#define CT_LOOKUP bpf_xdp_ct_lookup
#include "ends.h"
#include "edit.h"
#include "sample.h"
#include "unsettled.h"
#include "meter.h"

/* TC ingress must look at this packet too. */
static __always_inline void mark(struct xdp_md *ctx)
{
	struct mark *m;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*m))) {
		if (!ctl.no_marks)	/* every packet reads this line: store once */
			ctl.no_marks = 1;
		return;
	}
	m = (void *)(long)ctx->data_meta;
	if ((void *)(m + 1) <= (void *)(long)ctx->data)
		m->magic = MARK;
}

static __always_inline int out(__u32 port, enum reason reason, int verdict)
{
	return leave(tally_of(this_cpu(), STAGE_XDP, port), reason, verdict);
}

/* To the kernel. Not static, as slot_sweep() is not; nor are the others that a hit does not come to. */
__noinline int punt(struct xdp_md *ctx, struct slot *s, __u32 reason)
{
	if (is_due(reason) || reason == REASON_TC_WAY || reason == REASON_DRAINING) {
		if (s)
			s->given++;
		mark(ctx);
	}
	return out(ctx->ingress_ifindex, reason, XDP_PASS);
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

/* While TCP is the kernel's, neither does one of it. */
static __always_inline int is_off(__u8 proto)
{
	return proto == IPPROTO_TCP && ctl.tcp_off;
}

static __always_inline struct frame frame_of(const struct xdp_md *ctx)
{
	return (struct frame){
		.data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end, .port = ctx->ingress_ifindex,
	};
}

/* The same for a packet that has got as far as way(); if nothing was wrong with it there, with its length. */
static __always_inline int packet_of(struct frame *f, const struct xdp_md *ctx)
{
	word *w;

	*f = frame_of(ctx);
	f->family = within(f, f->data, ETH_HLEN) && ether_type(f) == wire16(ETH_P_IP) ? 4 : 6;
	if (!frame_fits(f, f->family))
		return 0;
	frame_point(f, f->family);
	f->proto = protocol_of(f);
	w = f->l3;
	f->l4_len = f->family == 4 ? (__u16)__builtin_bswap32(w[0]) - (__u32)sizeof(struct iphdr) : __builtin_bswap32(w[1]) >> 16;
	return 1;
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

/* For explain. */
__noinline int sample_aside(struct xdp_md *ctx, __u32 reason)
{
	sample_frame((void *)(long)ctx->data, (void *)(long)ctx->data_end, ctx->ingress_ifindex, 0, reason);
	return 0;
}

/* Out to the kernel by a reason that no slot remembers, unless it is over its rate; HIT: it is
 * still to be found. It asks for the context alone, and so for no register on the way of a hit. */
__noinline int refused(struct xdp_md *ctx, __u32 reason)
{
	struct frame f = frame_of(ctx);

	if (!reason)
		reason = ctl.paused ? REASON_PAUSED : why_not_whole(&f);
	/* the rest of a long frame is in fragments, which TC need not care about */
	if ((reason == REASON_MALFORMED || reason == REASON_RUNT) && bpf_xdp_get_buff_len(ctx) > f.end - f.data)
		return punt(ctx, 0, REASON_TC_WAY);
	if (!is_odd(reason) && over_rate(reason))	/* of those refuse() has asked */
		reason = REASON_POLICED;
	if (reason != REASON_PAUSED && reason != REASON_TCP_IMPLAUSIBLE)
		sample_aside(ctx, reason);
	return out(f.port, reason, reason == REASON_POLICED || reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
}

/* What parse.h found a reason in. */
__noinline int refuse(struct xdp_md *ctx, __u32 reason)
{
	struct frame f;

	if (!packet_of(&f, ctx))	/* never, but the verifier asks */
		return refused(ctx, reason);
	if (ctl.paused)
		return out(f.port, REASON_PAUSED, XDP_PASS);
	if (is_group(&f))
		return refused(ctx, REASON_NOT_HOST);
	if (reason == REASON_TCP_CLOSE || reason == REASON_TCP_SYN) {
		if (over_rate(reason))
			return out(f.port, REASON_POLICED, XDP_DROP);
		reason = close_by(ctx, &f, reason);
		return out(f.port, reason, reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
	}
	if (is_odd(reason))
		reason = over_rate(reason) ? REASON_POLICED : close_odd(ctx, ctx->ingress_ifindex, bpf_xdp_get_buff_len(ctx), reason);
	return refused(ctx, reason);
}

/* The first packet of a flow: no slot has its key. */
__noinline int unknown(struct xdp_md *ctx, struct first *first)
{
	struct frame f = frame_of(ctx);
	enum reason reason;
	struct slot *s;

	if (!first || !within(&f, f.data, ETH_HLEN))	/* never, but the verifier asks */
		return out(f.port, REASON_RUNT, XDP_PASS);
	reason = excluded(&f);
	if (reason)
		return refused(ctx, reason);
	if (is_off(proto_of(&first->key)))
		return out(f.port, REASON_TCP_OFF, XDP_PASS);
	reason = flow_admit(first);
	if (reason) {
		if (over_rate(reason))
			reason = REASON_POLICED;
		sample_keep(&first->key, &first->in6, about(reason, 0, 0));
		forget(reason);		/* where it comes from: the verifier knows less of that */
		return out(f.port, reason, reason == REASON_POLICED ? XDP_DROP : XDP_PASS);
	}
	s = slot_at(first->at.bucket, first->at.way);
	s->count = 1;
	if (ctl.threshold > 1)
		return out(f.port, REASON_BELOW_THRESHOLD, XDP_PASS);
	s->why = REASON_LEARNING;
	if (packet_of(&f, ctx))
		flow_evidence_any(s, &f);	/* it may be learned before the next one comes */
	return punt(ctx, s, REASON_LEARNING);
}

/* The slot is not simply good. HIT: it may be used all the same. */
__noinline enum reason doubt(struct xdp_md *ctx, struct slot *s, __u32 *seq)
{
	enum reason reason;
	struct frame f;

	if (!s || !seq || !packet_of(&f, ctx))	/* never, but the verifier asks */
		return REASON_RUNT;
	reason = excluded(&f);
	if (reason == REASON_PAUSED)
		flow_watch(s, &f);
	if (reason)
		return reason;
	if (is_off(f.proto))
		return REASON_TCP_OFF;
	reason = flow_check(s, &f);
	if (reason && (reason != REASON_LEASE_ENDED || flow_differs(s, &f) || !(s->flags & SLOT_XDP) || !poll_goes_on(s, f.port)))
		return flow_slow(s, &f, reason);
	if (!(s->flags & SLOT_XDP))
		return REASON_TC_WAY;
	return s->flags & SLOT_DRAIN && !flow_drained(s, seq) ? REASON_DRAINING : REASON_HIT;
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
		return refuse(ctx, reason);
	take_key(f);
	s = flow_find(&f->key, &f->in6, &at);
	if (rarely(!s)) {
		struct first first = { .key = f->key, .in6 = f->in6 };

		return unknown(ctx, &first);
	}
	if (rarely(!flow_good(s, f, now))) {
		__u32 seq = at.seq;

		if (flow_young(s, now) && !excluded(f) && !is_off(f->proto)) {
			flow_one_more(s, f, now);
			return out(f->port, REASON_BELOW_THRESHOLD, XDP_PASS);
		}
		reason = doubt(ctx, s, &seq);
		if (reason)
			return punt(ctx, s, reason);
		at.seq = seq;
	}
	if (rarely(f->l3_len > s->mtu)) {
		flow_evidence(s, f);
		s->why = REASON_OVER_MTU;
		if (over_rate(REASON_OVER_MTU))
			return out(f->port, REASON_POLICED, XDP_DROP);
		return out(f->port, REASON_OVER_MTU, XDP_PASS);
	}
	rewrite_copy(&rw, s, f->family);
	if (rarely(flow_torn(s, &at)))
		return out(f->port, REASON_BUSY, XDP_PASS);
	edit(f, &rw, 1);
	flow_count(s, f, 1, f->l3_len);
	/* Padding or a trailer, which may go on in fragments: the kernel would not forward it
	 * (pskb_trim_rcsum in ip_rcv_core). Not seen is one that begins with the first fragment.
	 * bpf_xdp_adjust_tail() refuses only what would cut into the Ethernet header. */
	if (rarely(trailer_of(f)) &&
	    bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + f->l3_len) - (int)bpf_xdp_get_buff_len(ctx)))
		return out(f->port, REASON_MALFORMED, XDP_DROP);
	/* Last, since a call makes a program put aside what it holds in registers. It fails if
	 * the egress went this very moment; before the daemon takes one away it makes sure that
	 * no entry names it (Plane.withdraw()). The flow's next packet is the kernel's. */
	if (rarely(bpf_redirect_map(&tx, rw.tx, XDP_DROP) != XDP_REDIRECT)) {
		s->state = SLOT_SEEN;
		s->why = REASON_EGRESS_GONE;
		return out(f->port, REASON_EGRESS_GONE, XDP_DROP);
	}
	return out(f->port, REASON_HIT, XDP_REDIRECT);
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
