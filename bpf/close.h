/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * close.h: how TCP connections begin and end. A SYN, FIN or RST goes to the kernel and takes
 * both directions out of use, at XDP and at TC ingress alike, whichever sees it first; and
 * since conntrack's window check is off for armed connections, FIN and RST are judged here.
 */
#ifndef SHUNT_CLOSE_H
#define SHUNT_CLOSE_H

#include "parse.h"
#include "flow.h"
#include "sample.h"

/* Behind an IP header that only the kernel can deal with (odd.h): ODD, that is what it leaves for, and who
 * calls takes a sample of it; UNSURE, the kernel may drop it before conntrack sees it. */
enum odd_bit { ODD = 1, UNSURE = 2 };

/* A SYN, FIN or RST, copied out of its frame so that the rare case does not keep the
 * frame of the common one in memory. */
struct closing {
	struct flow_key key;
	struct flow_words in6;
	enum reason reason;	/* TCP_SYN or TCP_CLOSE */
	__u32 seq;
	__u8 flags;		/* enum tcp_flag */
	__u8 dmac[6];
	__u8 odd;		/* enum odd_bit */
};

enum { MAXACKWINDOW = 66000 };		/* nf_conntrack_proto_tcp.c */

/* Could this FIN or RST be real? Conntrack's own window check is off for armed
 * connections (be-liberal), so it is made here, as wide as conntrack's at least:
 * the sequence number lies around what the other side acknowledged last. */
static __always_inline int plausible(__u32 seq, const struct slot *s, const struct slot *rev)
{
	__u32 base, window = MAXACKWINDOW;

	if (rev && rev->tcp_wnd) {
		__u32 advertised = (__u32)rev->tcp_wnd << (rev->tcp_scale & 15);

		base = rev->tcp_ack;
		if (advertised > window)
			window = advertised;
	} else if (s->tcp_wnd) {
		base = s->tcp_seq;
		window = 1 << 20;
	} else {
		return 1;
	}
	return seq - base + window <= 2 * window;
}

/* A reset that is the very next in sequence ends the connection (RFC 5961 3.2). Conntrack
 * compares it with the last packets that it saw, and those were not the last ones: it
 * would stay ESTABLISHED for a challenge (nf_conntrack_tcp_packet(), td_maxack). Not if it
 * is INVALID to conntrack by its flags (tcp_valid_flags), nor if it is not for this router or may
 * never come to conntrack. */
static __always_inline void tell_reset(const struct closing *c, const struct slot *s, const struct slot *rev)
{
	struct event *e;

	if ((c->flags & (TCP_FIN | TCP_RST | TCP_URG)) != TCP_RST || c->odd & UNSURE || !(s->flags & SLOT_LIBERAL) ||
	    s->state == SLOT_CLOSED)
		return;
	if (s->state == SLOT_ARMED && __builtin_memcmp(c->dmac, s->dmac_in, sizeof(c->dmac)))
		return;
	if (!(s->tcp_wnd && c->seq == s->tcp_seq) && !(rev && rev->tcp_wnd && c->seq == rev->tcp_ack))
		return;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = EVENT_RESET;
	e->family = family_of(&c->key);
	e->proto = proto_of(&c->key);
	e->sport = c->key.sport;
	e->dport = c->key.dport;
	if (e->family == 4) {
		e->saddr[0] = c->key.saddr;
		e->daddr[0] = c->key.daddr;
	} else {
		__builtin_memcpy(e->saddr, c->in6.saddr, sizeof(c->in6.saddr));
		__builtin_memcpy(e->daddr, c->in6.daddr, sizeof(c->in6.daddr));
		e->saddr[3] = c->key.saddr;
		e->daddr[3] = c->key.daddr;
	}
	bpf_ringbuf_submit(e, 0);
}

/* A new connection is in none of its four places, and those are in no cache: flow_find()
 * would wait for one after the other. */
static __always_inline void flow_fetch(const struct flow_key *k, const struct flow_words *w)
{
	__u64 h = flow_hash(k, w);

	for (int i = 0; i < 2 * WAYS; i++)
		(void)OUR(bucket_at(flow_bucket(h, i / WAYS))->way[i % WAYS].seq);
}

/* `seq` as flow_find() read it; if a writer was faster, it may have armed the slot just
 * now: look again, once. TCP_SYN (to SEEN): what is known is of an older connection. */
static __always_inline void slot_close(struct slot *s, __u32 seq, const struct flow_key *k,
				       const struct flow_words *w, enum reason why, __u32 lease)
{
	enum slot_state state = why == REASON_TCP_CLOSE ? SLOT_CLOSED : SLOT_SEEN;

	for (int i = 0; i < 2; i++, seq = OUR(s->seq)) {
		if (!flow_lock(s, seq))
			continue;
		if (same_flow(s, k, w)) {
			s->state = state;
			s->why = why;
			s->count = 0;
			s->lease = lease;
			if (state == SLOT_SEEN) {
				s->flags = 0;
				s->tcp_wnd = 0;
			}
		}
		flow_unlock(s);
		return;
	}
}

/* Close both directions at once, whatever becomes of the packet. A function of its own:
 * its registers and stack are not the common case's; and not static, so the verifier looks
 * at it once, for any packet, and does not multiply its branches with those before it. */
__noinline enum reason flow_close(const struct closing *c)
{
	struct slot *s, *rev = 0;
	struct flow_words w = {};
	struct flow_key k;
	struct place at = {}, back = {};
	__u32 until = now_jiffies();

	if (!c)			/* never, but the verifier asks */
		return REASON_TCP_CLOSE;
	flow_fetch(&c->key, &c->in6);
	s = flow_find(&c->key, &c->in6, &at);
	if (!s) {
		if (!c->odd)
			sample_keep(&c->key, &c->in6, about(c->reason, 0, 0));
		return c->reason;
	}
	if (s->flags & SLOT_PAIRED) {
		reverse_key(s, &k, &w);
		rev = flow_find(&k, &w, &back);
	}
	if (c->reason == REASON_TCP_CLOSE) {
		/* what was not watched all along (a pause, another generation) is no evidence */
		if (!plausible(c->seq, s, rev)) {
			if (!(s->flags & SLOT_LIBERAL) || s->gen != ctl.gen)
				return c->reason;
			sample_keep(&c->key, &c->in6, about(REASON_TCP_IMPLAUSIBLE, 0, 0));
			return REASON_TCP_IMPLAUSIBLE;
		}
		tell_reset(c, s, rev);
		until += ctl.lease;
	}
	slot_close(s, at.seq, &c->key, &c->in6, c->reason, until);
	if (rev)
		slot_close(rev, back.seq, &k, &w, c->reason, until);
	return c->reason;
}

static __always_inline struct closing closing_of(const struct frame *f, enum reason reason)
{
	const struct tcphdr *tcp = f->l4;
	struct closing c = { .key = f->key, .in6 = f->in6, .reason = reason };

	__builtin_memcpy(c.dmac, f->data, sizeof(c.dmac));
	if (within(f, tcp, sizeof(*tcp))) {
		c.seq = __builtin_bswap32(tcp->seq);
		c.flags = ((const __u8 *)tcp)[13];
	}
	return c;
}

/* A frame that parse.h found to be a SYN, FIN or RST. Returns what it is counted as:
 * TCP_IMPLAUSIBLE is to be dropped, the rest is the kernel's. */
static __always_inline enum reason close_by(struct frame *f, enum reason reason)
{
	struct closing closing;

	take_key(f);
	closing = closing_of(f, reason);
	return flow_close(&closing);
}

#endif
