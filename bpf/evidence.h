/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * evidence.h: where a TCP connection stands, as its entries know it from its packets, whichever path those
 * take. close.h judges FIN and RST by it, since be-liberal has switched conntrack's own window check off. So
 * only packets that conntrack would have taken may move it (tcp_in_window()).
 *
 * An entry knows the furthest end of a segment that came in, and what the last one acknowledged and which window
 * it advertised. The daemon corrects conntrack's timers by them (internal/dataplane/unsettled.go). Against a FIN or
 * RST they count while slot.watch is control.watch: in a pause a connection may end, and another one begin.
 */
#ifndef SHUNT_EVIDENCE_H
#define SHUNT_EVIDENCE_H

#include "maps.h"
#include "frame.h"

enum {
	MAXACKWINDOW = 66000,		/* nf_conntrack_proto_tcp.c */
	UNHEARD = 1 << 20,		/* bytes: the same while nobody heard of the other side */
	REACH = 1 << 23,		/* bytes: the next packet's distance; above Linux's default windows (tcp_rmem) */
	RESENT = 1 << 20,		/* bytes behind the furthest end: that segment was sent again */
};

static __always_inline int has_evidence(const struct frame *f)
{
	return f->proto == IPPROTO_TCP && within(f, f->l4, sizeof(struct tcphdr));
}

static __always_inline __u32 end_of(const struct frame *f)
{
	const struct tcphdr *tcp = f->l4;

	return __builtin_bswap32(tcp->seq) + f->l4_len - tcp->doff * 4;
}

static __always_inline __u32 ack_of(const struct frame *f)
{
	return __builtin_bswap32(((const struct tcphdr *)f->l4)->ack_seq);
}

static __always_inline __u32 further(__u32 a, __u32 b) { return (__s32)(a - b) > 0 ? a : b; }

/* Does a packet follow the last one, by both its numbers? One in 65,536 blind ones does. */
static __always_inline int evidence_follows(const struct slot *s, __u32 end, __u32 ack)
{
	return !(((end - s->tcp_seq + REACH) | (ack - s->tcp_ack + REACH)) / (2 * REACH));
}

/* A segment that is sent again, and a keepalive, leave the furthest end, as they leave conntrack's td_end. One further
 * behind moves it back: that heals what a forged one did. */
static __always_inline void evidence_put(struct slot *s, const struct frame *f, __u32 end, __u32 ack, int follows)
{
	if (!follows || s->tcp_seq - end > RESENT)
		s->tcp_seq = end;
	s->tcp_ack = ack;
	s->tcp_wnd = __builtin_bswap16(((const struct tcphdr *)f->l4)->window);
}

/* Is there a look-up of conntrack? Where it is a module, a process without CAP_SYS_ADMIN cannot refer to it. */
static __always_inline int has_lookups(void) { return LOADED(0, |, CT_LOOKUPS); }

/* Can conntrack be asked about an entry's connection? The look-up knows one zone. */
static __always_inline int is_askable(const struct slot *s) { return has_lookups() && !s->zone; }

static __always_inline int is_watched(const struct slot *s) { return s->watch && s->watch == (__u16)ctl.watch; }

static __always_inline int in_reach(__u32 a, __u32 b, __u32 reach)
{
	return a - b + reach <= 2 * reach;
}

/* Has each side come to where the other one is? Nobody forges that from one side. */
static __always_inline int evidence_agrees(__u32 end, __u32 ack, const struct slot *rev, __u32 reach)
{
	return in_reach(end, rev->tcp_ack, reach) && in_reach(ack, rev->tcp_seq, reach);
}

/* The window that the side which sends into this entry advertised last. */
static __always_inline __u32 window_of(const struct slot *s)
{
	return (__u32)s->tcp_wnd << (s->tcp_scale & 15);
}

/* How far a FIN or RST may be from what is known: as far as conntrack allows, at least. */
static __always_inline __u32 reach_of(const struct slot *rev)
{
	__u32 window = window_of(rev);

	return window > MAXACKWINDOW ? window : MAXACKWINDOW;
}

/* A packet that conntrack does not see moves the evidence if conntrack would have taken it. */
static __always_inline void flow_evidence(struct slot *s, const struct frame *f)
{
	__u32 end, ack;

	if (!has_evidence(f))
		return;
	end = end_of(f);
	ack = ack_of(f);
	if (mostly(evidence_follows(s, end, ack)))
		evidence_put(s, f, end, ack, 1);
}

/* While conntrack checks windows itself, any packet moves it: nothing is judged by it yet. */
static __always_inline void flow_evidence_any(struct slot *s, const struct frame *f)
{
	__u32 end, ack;

	if (!has_evidence(f))
		return;
	end = end_of(f);
	ack = ack_of(f);
	evidence_put(s, f, end, ack, s->watch && evidence_follows(s, end, ack));
	s->watch = ctl.watch;
}

#endif
