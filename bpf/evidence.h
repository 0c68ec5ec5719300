/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * evidence.h: where a TCP connection stands, as its entries know it from its packets, whichever path those
 * take. close.h judges FIN and RST by it, since be-liberal has switched conntrack's own window check off. So
 * only packets that conntrack would have taken may move it (tcp_in_window()).
 *
 * An entry knows the end of the last segment that came in, what that acknowledged, and the window that it
 * advertised. They count while slot.watch is control.watch: nobody saw the packets of a pause.
 */
#ifndef SHUNT_EVIDENCE_H
#define SHUNT_EVIDENCE_H

#include "maps.h"
#include "frame.h"

enum {
	MAXACKWINDOW = 66000,		/* nf_conntrack_proto_tcp.c */
	UNHEARD = 1 << 20,		/* bytes: the same while nobody heard of the other side */
	REACH = 1 << 23,		/* bytes: the next packet's distance; above Linux's default windows (tcp_rmem) */
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

/* Does a packet follow the last one, by both its numbers? One in 65,536 blind ones does. */
static __always_inline int evidence_follows(const struct slot *s, __u32 end, __u32 ack)
{
	return !(((end - s->tcp_seq + REACH) | (ack - s->tcp_ack + REACH)) / (2 * REACH));
}

static __always_inline void evidence_put(struct slot *s, const struct frame *f, __u32 end, __u32 ack)
{
	s->tcp_seq = end;
	s->tcp_ack = ack;
	s->tcp_wnd = __builtin_bswap16(((const struct tcphdr *)f->l4)->window);
}

/* Is there a look-up of conntrack? Where it is a module, a process without CAP_SYS_ADMIN cannot refer to it. */
static __always_inline int has_lookups(void) { return LOADED(0, |, CT_LOOKUPS); }

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

#endif
