/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connection.h: the entries of a TCP connection, wherever its packets came in. It has one for each direction
 * and each port that it came by: when a route moves, the old entry keeps what was known until then. So a
 * segment belongs to a connection if it fits any of its entries.
 *
 * Called for a FIN or RST that does not fit its own entry or that one's other direction (ends.h), and for a
 * packet that does not follow the one before it (flow.h). No hit comes here. Limit: interfaces that are no
 * ports have no entries.
 */
#ifndef SHUNT_CONNECTION_H
#define SHUNT_CONNECTION_H

#include "flow.h"

/* Does the other direction say that a packet which does not follow the last one is the next all the same? Not
 * static: see flow_search(). */
__noinline int flow_agrees(const struct slot *s, __u32 end, __u32 ack)
{
	struct flow_words w = {};
	struct flow_key k;
	struct place at = {};
	struct slot *rev;
	__u32 reach = REACH;

	if (!s || !(s->flags & SLOT_PAIRED))	/* the first never, but the verifier asks */
		return 0;
	reverse_key(s, &k, &w);
	rev = flow_find(&k, &w, &at);
	if (!rev || !is_watched(rev))
		return 0;
	if (window_of(rev) > reach)	/* what is not acknowledged yet, of either side */
		reach = window_of(rev);
	if (window_of(s) > reach)
		reach = window_of(s);
	return evidence_agrees(end, ack, rev, reach);
}

/* A SYN, FIN or RST, copied out of its frame so that the rare case does not keep the
 * frame of the common one in memory. */
struct closing {
	struct flow_key key;
	struct flow_words in6;
	enum reason reason;	/* TCP_SYN or TCP_CLOSE */
	__u32 seq, ack;
	__u32 other;		/* an entry that it fits has this kind instead of its key's; 0: its own or none */
	__u8 flags;		/* enum tcp_flag */
	__u8 dmac[6];
	__u8 odd;		/* enum odd_bit */
	__u8 zoned;		/* in another zone: conntrack cannot be asked about it */
	__u8 known;		/* there is an entry that counts */
	__u8 fits;		/* and it fits one */
	__u8 alone;		/* there is none for its direction and port */
};

/* A look for its connection at all ports. */
struct search {
	struct flow_key key;
	struct flow_words in6;
	__u32 seq;
	__u32 reverse;		/* the key is the other direction's */
	__u32 fits;
	__u32 bucket, way;	/* of the last entry that counts */
	__u32 known;		/* there was one */
	__u32 zoned;		/* one of its direction is in another zone */
};

static long search_port(void *map, const __u32 *port, struct port *row, struct search *q)
{
	struct place at = {};
	struct slot *s;

	q->key.kind = kind_of(*port, family_of(&q->key), IPPROTO_TCP);
	s = flow_find(&q->key, &q->in6, &at);
	if (!s || !(s->flags & SLOT_LIBERAL) || !is_watched(s))
		return 0;
	q->known = 1;
	q->zoned |= !q->reverse && s->zone;
	q->bucket = at.bucket;
	q->way = at.way;
	q->fits = q->reverse ? in_reach(q->seq, s->tcp_ack, reach_of(s)) : in_reach(q->seq, s->tcp_seq, MAXACKWINDOW);
	return q->fits;
}

/* Looks at every port for the entries of a segment's direction, and then for those of the other. Not
 * static: the verifier looks at it once. */
__noinline int flow_search(struct closing *c)
{
	struct search q = {};
	struct slot *s;

	if (!c)			/* never, but the verifier asks */
		return 0;
	q.key = c->key;
	q.in6 = c->in6;
	q.seq = c->seq;
	bpf_for_each_map_elem(&ports, search_port, &q, 0);
	c->known |= q.known;
	c->other = q.fits ? q.key.kind : 0;
	if (q.known && !q.fits) {
		s = slot_at(q.bucket, q.way);
		if (s->flags & SLOT_PAIRED) {
			reverse_key(s, &q.key, &q.in6);
			q.reverse = 1;
			bpf_for_each_map_elem(&ports, search_port, &q, 0);
		}
	}
	c->fits = q.fits;
	c->zoned |= q.zoned;
	return 0;
}

#endif
