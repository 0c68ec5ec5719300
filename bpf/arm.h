/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * arm.h: a lesson becomes an entry. learn.h has judged the packet; here its slot is written,
 * its lease given, and its reverse direction paired with it. Called by learn() alone.
 */
#ifndef SHUNT_ARM_H
#define SHUNT_ARM_H

#include "differ.h"
#include "unsettled.h"
#include "verdict.h"

/* The daemon may be told of a change between sighting and now, and go through the armed slots
 * (Plane.Forget) before this one was among them. It raises the clock first and looks
 * then; here the slot is among them first, and then the clock is looked at: on x86 a locked
 * instruction is a full barrier, so one of the two sees the other. */
static __always_inline void slot_tell(struct slot *s, const struct sighting *g)
{
	__u32 n = LOADED(g->bucket, >>, BUCKET_SHIFT) * WAYS + g->way % WAYS;
	__u64 *bits = armed;

	forget(bits);		/* that there was one word of them when it was compiled */
	__sync_fetch_and_or(&bits[n / 64], 1ull << n % 64);
	if (proto_of(&g->key) == IPPROTO_TCP)
		slot_unsettled(s);
	asm volatile("" ::: "memory");
	if (g->clock != ctl.clock)
		s->gen = GEN_NEVER;
}

/* From now on evidence counts. Conntrack has checked every packet until be-liberal was set, so its numbers are
 * believed, and those of a packet that follows them: they stand still where be-liberal is older. If they are far
 * from it, the other direction must agree (slot_pair()). */
static __always_inline void slot_evidence(struct slot *s, const struct lesson *l)
{
	if (!(l->flags & SLOT_LIBERAL) || s->flags & SLOT_LIBERAL)
		return;
	if (!is_watched(s) || !evidence_follows(s, l->end, l->ack)) {
		s->watch = 0;
		return;
	}
	s->tcp_seq = further(s->tcp_seq, l->end);
	s->tcp_ack = further(s->tcp_ack, l->ack);
}

/* The only place where a slot becomes armed. */
static __always_inline enum reason slot_arm(struct slot *s, struct __sk_buff *skb, const struct sighting *g,
					    const struct lesson *l)
{
	enum reason reason = REASON_LEARNED;
	__u32 seq = OUR(s->seq);

	if (!flow_lock(s, seq))
		return REASON_BUSY;
	if (!same_flow(s, &g->key, &g->in6) || s->state == SLOT_EMPTY || s->state == SLOT_CLOSED) {
		flow_unlock(s);
		return REASON_SLOT_LOST;
	}
	if (s->state == SLOT_ARMED) {
		/* several packets are under way when a lease ends: the first one counts */
		if (s->gen != g->gen || passed(s->lease, now_jiffies()))
			s->renewals += s->renewals != 0xffff;
		reason = s->gen != g->gen || !differ(skb, s, g, l) ? REASON_RENEWED : REASON_CHANGED;
	} else {
		s->packets = 0;
		s->bytes = 0;
		s->renewals = 0;
		s->born = now_jiffies();
	}
	s->gen = g->gen;
	s->lease = now_jiffies() + l->lease;
	s->state = SLOT_ARMED;
	s->count = 0;
	slot_evidence(s, l);
	s->flags = l->flags | (s->given == s->taken || ctl.no_marks ? 0 : SLOT_DRAIN);
	s->dscp_in = g->tos & 0xfc;
	s->dscp_out = l->rw.dscp;
	__builtin_memcpy(s->dmac_in, g->dmac, 12);
	s->label_in = g->label;
	s->mtu = l->mtu;
	s->tcp_scale = l->scale;
	s->zone = l->zone;
	s->why = reason;
	__builtin_memcpy(&s->saddr, &l->rw, 32);
	if (family_of(&g->key) == 6)
		s->out6 = l->rw.out6;
	s->oif = skb->ifindex;
	s->mark = skb->mark;
	s->priority = skb->priority;
	flow_unlock(s);
	slot_tell(s, g);
	return reason;
}

/* A connection's other direction must be found from either side, so that one FIN or
 * RST closes both: give it a slot that knows its reverse key, if it has none. Not static: see learn(). */
__noinline int slot_pair(struct slot *s, __u32 reverse_scale, __u32 reverse_zone)
{
	struct flow_words w = {};
	struct flow_key k;
	struct place at = {};
	struct slot *rev;
	int agree;

	if (!s)			/* never, but the verifier asks */
		return 0;
	reverse_key(s, &k, &w);
	rev = flow_find(&k, &w, &at);
	if (!rev)
		rev = flow_claim(&k, &w, &at);
	if (!rev)
		return 0;
	agree = is_watched(rev) && evidence_agrees(s->tcp_seq, s->tcp_ack, rev, REACH);
	if (s->flags & SLOT_LIBERAL && !s->watch && agree)
		s->watch = ctl.watch;
	if (rev->flags & SLOT_PAIRED || !flow_lock(rev, at.seq))
		return 0;
	rev->saddr = s->key.daddr;
	rev->daddr = s->key.saddr;
	rev->sport = s->key.dport;
	rev->dport = s->key.sport;
	__builtin_memcpy(rev->out6.saddr, s->in6.daddr, sizeof(rev->out6.saddr));
	__builtin_memcpy(rev->out6.daddr, s->in6.saddr, sizeof(rev->out6.daddr));
	rev->oif = port_of(&s->key);
	rev->gen = s->gen;
	rev->tcp_scale = reverse_scale;
	rev->zone = reverse_zone;
	rev->flags |= SLOT_PAIRED | (s->flags & SLOT_LIBERAL);
	if (s->flags & SLOT_LIBERAL && !agree) {
		rev->tcp_seq = s->tcp_ack;
		rev->tcp_ack = s->tcp_seq;
		rev->tcp_wnd = 0;	/* nobody acknowledged that: state.known in unsettled.go */
		rev->count = 0;
		rev->watch = s->watch;
	}
	flow_unlock(rev);
	return 0;
}

/* Every Nth flow has short leases, so its proofs cost a hit nothing (to send it to the kernel in
 * the middle of a lease, each hit would have to ask), and go on while no daemon lives. Which
 * ones is by their keyed hash, stirred once more: keys in a row have hashes in a row. */
static __always_inline int is_verified(__u32 hash)
{
	if (!ctl.verify)
		return 0;
	hash = (hash ^ hash >> 16) * (__u32)ctl.mix;
	return (hash ^ hash >> 15) % ctl.verify == 0;
}

/* The lease: stretched while the daemon beats, with jitter, so that flows that were
 * learned together do not all come back together. */
static __always_inline __u32 lease_length(__u32 hash)
{
	__u32 lease = ctl.lease;

	if (daemon_lives())
		lease = ctl.lease_live;
	if (lease > ctl.hz / 4 && is_verified(hash))
		lease = ctl.hz / 4;
	return lease - lease / 8 + bpf_get_prandom_u32() % (lease / 4 + 1);
}

#endif
