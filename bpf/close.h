/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * close.h: how TCP connections begin and end. A SYN, FIN or RST goes to the kernel and takes
 * both directions out of use, at XDP and at TC ingress alike, whichever sees it first; and
 * since conntrack's window check is off for armed connections, FIN and RST are judged here.
 * docs/security.md has the table of what is done with which segment.
 */
#ifndef SHUNT_CLOSE_H
#define SHUNT_CLOSE_H

#include "parse.h"
#include "connection.h"
#include "sample.h"

/* Behind an IP header that only the kernel can deal with (odd.h): ODD, that is what it leaves for, and who
 * calls takes a sample of it; UNSURE, the kernel may drop it before conntrack sees it. */
enum odd_bit { ODD = 1, UNSURE = 2 };

/* A RST that refuses the SYN which came last (RFC 9293 3.10.7.1): it fits that, and not the
 * connection of which conntrack still has an entry. */
static __always_inline int refuses_syn(const struct closing *c, const struct slot *s)
{
	return (c->flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) && s->state == SLOT_SEEN &&
	       s->flags & SLOT_LIBERAL && s->lease == c->ack;
}

/* Does this FIN or RST belong to the connection as these two entries know it? It does if it follows the last
 * segment of its own side, or what the other side acknowledged last: one of the two may be old, if packets
 * took another way in. It is looked for as far around as conntrack does, at least. */
static __always_inline int belongs(const struct closing *c, const struct slot *s, const struct slot *rev)
{
	__u32 reach = UNHEARD;

	if (rev && is_watched(rev)) {
		reach = reach_of(rev);
		if (in_reach(c->seq, rev->tcp_ack, reach))
			return 1;
	} else if (!is_watched(s)) {
		return 1;		/* nothing is known */
	}
	return (is_watched(s) && in_reach(c->seq, s->tcp_seq, reach)) || refuses_syn(c, s);
}

/* Was the connection seen all along, from both sides? If not, a segment is not refused. */
static __always_inline int is_known(const struct slot *s, const struct slot *rev)
{
	return s->flags & SLOT_LIBERAL && is_watched(s) && (!rev || is_watched(rev));
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
	if (!(is_watched(s) && c->seq == s->tcp_seq) && !(rev && is_watched(rev) && c->seq == rev->tcp_ack))
		return;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = EVENT_RESET;
	e->family = family_of(&c->key);
	e->proto = proto_of(&c->key);
	e->zone = s->zone;
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

/* Forgets a connection that is over. */
static __always_inline void slot_forget(struct slot *s)
{
	s->flags = 0;
	s->tcp_wnd = 0;
	s->watch = 0;
	s->zone = 0;
}

/* `seq` as flow_find() read it; if a writer was faster, it may have armed the slot just
 * now: look again, once. A SYN (to SEEN) may begin another connection, or be forged: while conntrack has
 * its window check off, what is known stays, and ends.h asks conntrack later which it was. */
static __always_inline void slot_close(struct slot *s, __u32 seq, const struct flow_key *k,
				       const struct flow_words *w, const struct closing *c, __u32 lease)
{
	for (int i = 0; i < 2; i++, seq = OUR(s->seq)) {
		if (!flow_lock(s, seq))
			continue;
		if (same_flow(s, k, w)) {
			s->state = c->reason == REASON_TCP_CLOSE ? SLOT_CLOSED : SLOT_SEEN;
			s->why = c->reason;
			s->count = 0;
			s->lease = lease;
			if (c->reason == REASON_TCP_SYN) {
				if (s->flags & SLOT_LIBERAL && is_askable(s))
					s->lease = c->seq + 1;
				else
					slot_forget(s);
			}
		}
		flow_unlock(s);
		return;
	}
}

/* Closes both directions at once. Returns 1, and closes nothing, if a FIN or RST fits neither of them and
 * flow_search() has not said that it fits another entry. A function of its own:
 * its registers and stack are not the common case's; and not static, so the verifier looks
 * at it once, for any packet, and does not multiply its branches with those before it. */
__noinline int flow_close(struct closing *c)
{
	struct slot *s, *rev = 0;
	struct flow_words w = {};
	struct flow_key k;
	struct place at = {}, back = {};
	__u32 until = now_jiffies();

	if (!c)			/* never, but the verifier asks */
		return 0;
	flow_fetch(&c->key, &c->in6);
	s = flow_find(&c->key, &c->in6, &at);
	c->alone = !s;
	if (!s)
		return c->reason == REASON_TCP_CLOSE && !c->fits;
	if (s->flags & SLOT_PAIRED) {
		reverse_key(s, &k, &w);
		rev = flow_find(&k, &w, &back);
	}
	c->zoned |= !!s->zone;
	if (c->reason == REASON_TCP_CLOSE) {
		if (!c->fits && !belongs(c, s, rev)) {
			c->known = is_known(s, rev);
			return c->known || !(s->flags & SLOT_LIBERAL);
		}
		tell_reset(c, s, rev);
		until += ctl.lease;
	}
	slot_close(s, at.seq, &c->key, &c->in6, c, until);
	if (rev)
		slot_close(rev, back.seq, &k, &w, c, until);
	return 0;
}

/* Forgets what is known: conntrack has begun another connection since, and judges that one itself. Not static, as
 * flow_close() is not. */
__noinline int flow_renounce(const struct closing *c)
{
	struct flow_words w = {};
	struct flow_key k;
	struct place at = {}, back = {};
	struct slot *s, *rev = 0;

	if (!c)			/* never, but the verifier asks */
		return 0;
	s = flow_find(&c->key, &c->in6, &at);
	if (!s)
		return 0;
	if (s->flags & SLOT_PAIRED) {
		reverse_key(s, &k, &w);
		rev = flow_find(&k, &w, &back);
	}
	if (flow_lock(s, at.seq)) {
		slot_forget(s);
		s->state = SLOT_SEEN;
		flow_unlock(s);
	}
	if (rev && flow_lock(rev, back.seq)) {
		slot_forget(rev);
		rev->state = SLOT_SEEN;
		flow_unlock(rev);
	}
	return 0;
}

static __always_inline struct closing closing_of(const struct frame *f, enum reason reason)
{
	const struct tcphdr *tcp = f->l4;
	struct closing c = { .key = f->key, .in6 = f->in6, .reason = reason };

	__builtin_memcpy(c.dmac, f->data, sizeof(c.dmac));
	if (within(f, tcp, sizeof(*tcp))) {
		c.seq = __builtin_bswap32(tcp->seq);
		c.ack = __builtin_bswap32(tcp->ack_seq);
		c.flags = ((const __u8 *)tcp)[13];
	}
	return c;
}

#endif
