/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * flow.h: the flow table. Find a slot, judge whether it may be used now, claim one for a new flow.
 *
 * Placing: multiply-shift (Thorup, "High Speed Hashing for Integers and Strings"), a
 * universal hash keyed by a secret per start, gives each key two buckets of two slots. A
 * key without room among its four slots is slow, never wrong. Nothing in use is evicted:
 * only slots whose flow has been idle for `idle`, since its lease ended too.
 *
 * Readers and writers meet on different CPUs. `seq` is odd while a writer is in;
 * a reader takes it before it looks and compares after it copied (flow_torn). On
 * x86 loads and stores keep their order; elsewhere the fences below are atomics.
 */
#ifndef SHUNT_FLOW_H
#define SHUNT_FLOW_H

#include "maps.h"
#include "frame.h"
#include "source.h"
#include "csum.h"
#include "evidence.h"

/* A fetching atomic is a full barrier in the BPF memory model. */
#if defined(__TARGET_ARCH_x86) || !defined(__bpf__)
static __always_inline void read_fence(void) { asm volatile("" ::: "memory"); }
#else
static __always_inline void read_fence(void)
{
	__u64 here = 0;

	__sync_fetch_and_add(&here, 1);
	asm volatile("" ::: "memory");
}
#endif

static __always_inline __u32 now_jiffies(void) { return bpf_jiffies64(); }

/* Is it past t? Every time in a slot, and those of the daemon, was at most a lease (67.5 s)
 * ahead when it was written; what seems further ahead is of an earlier turn of the 32 bits.
 * With the daemon dead, a lease seems good again once a turn (49 days at HZ 1000) for 131 s, to
 * a flow that slept all the time between. */
enum { AHEAD = 17 };	/* bits */

static __always_inline int passed(__u32 t, __u32 now) { return (t - now - 1) >> AHEAD != 0; }
static __always_inline int daemon_lives(void) { return !passed(ctl.beat + ctl.beat_max, now_jiffies()); }

/* The daemon is dead for longer than labels may live. */
static __always_inline int orphaned(__u32 now) { return now - ctl.beat > ctl.label_hold; }

struct place {
	__u32 bucket, way;
	__u32 seq;		/* as read before the key was compared */
};

static __always_inline __u64 pair(__u32 a, __u32 b, int i)
{
	return (a + ctl.secret[i]) * (b + ctl.secret[i + 1]);
}

/* The key's two numbers, each times an odd secret; the uppermost bits of the sum are
 * universal if but one of the two differs, or one of them in its lower bits. Ports are the
 * lower half of the second number and the source is that of the first, so what remains are
 * keys alike in those that differ in destination and in many ifindexes: nobody can make
 * them. The rest of IPv6 addresses goes in by pairs, which ask for nothing. */
static __always_inline __u64 flow_hash(const struct flow_key *k, const struct flow_words *w)
{
	__u64 h = *addresses_of(k) * ctl.secret[0] + *rest_of(k) * ctl.secret[1];

	if (family_of(k) == 6) {
		h += pair(w->saddr[0], w->saddr[1], 2);
		h += pair(w->saddr[2], w->daddr[0], 4);
		h += pair(w->daddr[1], w->daddr[2], 6);
	}
	return h;
}

static __always_inline struct bucket *bucket_at(__u32 n)
{
	void *table = (void *)flows;

	forget(table);		/* that it had BUCKETS buckets when it was compiled */
	return table + LOADED(n, >>, BUCKET_SHIFT) * sizeof(struct bucket);
}

static __always_inline struct slot *slot_at(__u32 bucket, __u32 way)
{
	return &bucket_at(bucket)->way[way % WAYS];
}

/* Either of the two choices, for bucket_at(). The uppermost bits are the hash; the second
 * choice takes in the lower ones too, or keys that share a bucket would share both. */
static __always_inline __u32 flow_bucket(__u64 h, int choice)
{
	if (choice)
		h = (h ^ h >> 29) * ctl.mix;
	return h >> 32;
}

static __always_inline int same_flow(const struct slot *s, const struct flow_key *k,
				     const struct flow_words *w)
{
	if (*addresses_of(&s->key) != *addresses_of(k) || *rest_of(&s->key) != *rest_of(k))
		return 0;
	if (family_of(k) == 6) {
		__u32 differ = 0;

		for (int i = 0; i < 3; i++)
			differ |= (s->in6.saddr[i] ^ w->saddr[i]) | (s->in6.daddr[i] ^ w->daddr[i]);
		return !differ;
	}
	return 1;
}

static __always_inline struct slot *flow_look(__u32 bucket, const struct flow_key *k,
					      const struct flow_words *w, struct place *at)
{
	struct bucket *b = bucket_at(bucket);
	struct slot *s;

	/* fetch line 1 beside line 0: what follows waits for line 0 and would fill the
	 * scheduler before the processor gets as far as the rewrite */
	(void)OUR(b->way[0].packets);
	for (int way = 0; way < WAYS; way++) {
		s = &b->way[way];
		at->seq = OUR(s->seq);
		read_fence();
		if (same_flow(s, k, w)) {	/* no ifindex is 0, so no key is that of an empty slot */
			at->bucket = bucket;
			at->way = way;
			return s;
		}
	}
	return 0;
}

static __always_inline struct slot *flow_find(const struct flow_key *k, const struct flow_words *w,
					      struct place *at)
{
	__u64 h = flow_hash(k, w);
	struct slot *s = flow_look(flow_bucket(h, 0), k, w, at);

	return s ? s : flow_look(flow_bucket(h, 1), k, w, at);
}

/* Was the slot rewritten since flow_find() read its seq? */
static __always_inline int flow_torn(const struct slot *s, const struct place *at)
{
	read_fence();
	return OUR(s->seq) != (at->seq & ~1);	/* neither while a writer is in */
}

/* The writer's side. Whoever does not get in gives up: someone else is at it. */
static __always_inline int flow_lock(struct slot *s, __u32 seq)
{
	return !(seq & 1) && __sync_val_compare_and_swap(&s->seq, seq, seq + 1) == seq;
}

static __always_inline void flow_unlock(struct slot *s)
{
	__sync_fetch_and_add(&s->seq, 1);
}

static __always_inline int flow_free(const struct slot *s, __u32 now)
{
	if (s->state == SLOT_EMPTY)
		return 1;
	if (s->state == SLOT_SEEN)
		return passed(s->seen + ctl.idle, now);
	/* hits do not touch `seen`: a busy flow gets an idle time to come back in */
	return passed(s->seen + ctl.idle, now) && passed(s->lease + ctl.idle, now);
}

static __always_inline void slot_init(struct slot *s, const struct flow_key *k,
				      const struct flow_words *w, __u32 now)
{
	source_count(&s->key, &s->in6, -1);
	source_count(k, w, 1);
	s->state = SLOT_SEEN;
	s->flags = 0;
	s->why = REASON_BELOW_THRESHOLD;
	s->key = *k;
	if (family_of(k) == 6)
		s->in6 = *w;
	s->tcp_wnd = 0;
	s->spent = 0;
	s->tcp_scale = 0;
	s->watch = 0;
	s->zone = 0;
	s->count = 0;
	s->seen = now;
	s->lease = now - ctl.hz;	/* be-liberal may be asked for at once */
	s->given = 0;
	s->taken = 0;
}

/* May a slot be given away? IDLE_TCP: at the last, since FIN and RST of that connection are judged by it. */
enum { IN_USE = 0, IDLE_TCP = 1, FREE = WAYS + 1 };

static __always_inline __u32 slot_spare(const struct slot *s, __u32 now)
{
	if (!flow_free(s, now))
		return IN_USE;
	return s->state != SLOT_EMPTY && s->flags & SLOT_LIBERAL ? IDLE_TCP : FREE;
}

/* A free slot, now owned by the key and counted from zero. The emptier of the two
 * buckets gets it: with both choices open the table fills to the brim evenly. */
static __always_inline struct slot *flow_claim(const struct flow_key *k, const struct flow_words *w,
					       struct place *at)
{
	__u32 now = now_jiffies(), free = 0;
	__u64 h = flow_hash(k, w);
	struct slot *best;

	for (int choice = 0; choice < 2; choice++) {
		__u32 bucket = flow_bucket(h, choice), sum = 0, most = 0, chosen = 0;

		for (int way = WAYS - 1; way >= 0; way--) {
			__u32 spare = slot_spare(&bucket_at(bucket)->way[way], now);

			sum += spare;
			if (spare >= most) {
				most = spare;
				chosen = way;
			}
		}
		if (sum > free) {
			free = sum;
			at->bucket = bucket;
			at->way = chosen;
		}
		if (free == WAYS * FREE)
			break;
	}
	if (!free)
		return 0;
	best = slot_at(at->bucket, at->way);
	at->seq = OUR(best->seq);
	if (!flow_lock(best, at->seq))
		return 0;
	if (!flow_free(best, now)) {
		flow_unlock(best);
		return 0;
	}
	slot_init(best, k, w, now);
	flow_unlock(best);
	at->seq += 2;
	return best;
}

/* Not static: the verifier looks at such a function once, for any arguments. */
__noinline int slot_sweep(__u32 bucket, __u32 way)
{
	struct slot *s = slot_at(LOADED(bucket, <<, BUCKET_SHIFT), way);
	__u32 now = now_jiffies(), seq = OUR(s->seq);

	if (!port_of(&s->key) || !flow_free(s, now) || !flow_lock(s, seq))
		return 0;
	/* a source that floods must not sweep the idle TCP connections of others away */
	if (flow_free(s, now) && (slot_spare(s, now) == FREE || source_full(&s->key, &s->in6))) {
		source_count(&s->key, &s->in6, -1);
		s->state = SLOT_EMPTY;
		*addresses_of(&s->key) = 0;
		*rest_of(&s->key) = 0;
	}
	flow_unlock(s);
	return 0;
}

enum { SWEEP = 8, SWEEPS = 16, SPREAD = 0x1e3779b9 };

/* Empties slots that nobody uses any more, so that they are not counted for their sources. A
 * source at its limit has this done before it is refused. Each CPU goes through all buckets on its
 * own, from another place than the others, and looks at SWEEPS * SWEEP of them a jiffy at the
 * most: a flood from one source writes nothing that CPUs share, and costs no more on many of them
 * than on one. If a source holds `idle` of the table's slots for nothing, one of them is found after
 * slots / (16 * idle) sweeps: at a limit of a quarter of the table four are found by each, at the
 * least one that may be configured (a 1024th) it takes 64. Not static, as slot_sweep() is not. */
__noinline int flow_sweep(void)
{
	__u64 cpu = this_cpu();
	struct notebook *n = row_of(notebooks, cpu, 1, 0, sizeof(struct notebook));
	__u32 now = now_jiffies(), from;

	if (n->swept != now) {
		n->swept = now;
		n->sweeps = 0;
	}
	if (n->sweeps >= SWEEPS)
		return 0;
	n->sweeps++;
	from = n->hand + cpu * SPREAD;
	n->hand += SWEEP;
	for (int i = 0; i < SWEEP * WAYS; i++)
		slot_sweep(from + i / WAYS, i % WAYS);
	return 0;
}

/* The first packet of a flow, and where its slot is. */
struct first {
	struct flow_key key;
	struct flow_words in6;
	struct place at;
};

/* A slot for a new flow, if there is one for it: HIT. Not static, as flow_sweep() is not. */
__noinline enum reason flow_admit(struct first *p)
{
	if (!p)			/* never, but the verifier asks */
		return REASON_TABLE_FULL;
	if (rarely(source_full(&p->key, &p->in6))) {
		flow_sweep();
		if (source_full(&p->key, &p->in6))
			return REASON_SOURCE_FULL;
	}
	return flow_claim(&p->key, &p->in6, &p->at) ? REASON_HIT : REASON_TABLE_FULL;
}

static __always_inline int same_macs(const struct slot *s, const struct frame *f)
{
	const void *mac = f->data, *in = s->dmac_in;

	return *(dword *)mac == *(dword *)in && *(word *)(mac + 8) == *(word *)(in + 8);
}

/* Does the packet look like those that the entry was learned from? */
static __always_inline enum reason flow_differs(const struct slot *s, const struct frame *f)
{
	if (!same_macs(s, f))
		return REASON_MAC_DIFFERS;
	if ((tos_of(f) & 0xfc) != s->dscp_in)
		return REASON_DSCP_DIFFERS;
	if (label_of(f) != s->label_in)
		return REASON_LABEL_DIFFERS;
	return REASON_HIT;
}

/* Why an armed entry must not be used for this packet now; HIT: it may. */
static __always_inline enum reason flow_check(const struct slot *s, const struct frame *f)
{
	if (s->state != SLOT_ARMED) {
		if (s->state == SLOT_CLOSED)
			return REASON_CLOSED;
		return s->count < ctl.threshold ? REASON_BELOW_THRESHOLD : REASON_LEARNING;
	}
	if (s->gen != ctl.gen)
		return REASON_OLD_GENERATION;
	if (passed(s->lease, now_jiffies()))
		return REASON_LEASE_ENDED;
	return flow_differs(s, f);
}

/* May XDP use the entry for this packet now? All differences in one number, and one branch:
 * why not is flow_check()'s. */
static __always_inline int flow_good(const struct slot *s, const struct frame *f, __u32 now)
{
	const __u32 want = SLOT_ARMED | (tos_of(f) & 0xfc) << 8 | SLOT_XDP << 16;	/* and no SLOT_DRAIN */
	const void *mac = f->data, *in = s->dmac_in;
	__u32 state = *(word *)&s->state, left = s->lease - now;
	__u64 differ;

	forget(state);	/* or they would be kept for whoever asks why not */
	forget(left);
	differ = (state ^ want) & (0xff | 0xff << 8 | (SLOT_XDP | SLOT_DRAIN) << 16);
	differ |= s->gen ^ ctl.gen;
	differ |= (left - 1) >> AHEAD;	/* passed() */
	differ |= *(dword *)mac ^ *(dword *)in;
	differ |= *(word *)(mac + 8) ^ *(word *)(in + 8);
	if (f->family == 6)
		differ |= label_of(f) ^ s->label_in;
	return !differ;
}

/* One hit. Plain additions: a flow stays on one CPU (RSS); where it does not, figures
 * of the flow may fall short, those by reason never. */
static __always_inline void flow_count(struct slot *s, const struct frame *f, __u32 packets, __u32 bytes)
{
	s->packets += packets;
	s->bytes += bytes;
	flow_evidence(s, f);
}

/* The commonest doubt, before any other is asked about: the flow goes on, and has a while to
 * go to the threshold. What comes of it is flow_slow()'s with BELOW_THRESHOLD. */
static __always_inline int flow_young(const struct slot *s, __u32 now)
{
	return s->state == SLOT_SEEN && !(s->flags & SLOT_LIBERAL) && s->count + 1 < ctl.threshold &&
	       !passed(s->seen + ctl.idle, now);
}

static __always_inline void flow_one_more(struct slot *s, const struct frame *f, __u32 now)
{
	s->count++;
	s->seen = now;
	s->why = REASON_BELOW_THRESHOLD;
	flow_evidence_any(s, f);
}

/* Count the packet for its flow; from the threshold on it is due for learning. */
static __always_inline enum reason flow_sighted(struct slot *s, const struct frame *f, enum reason reason)
{
	__u32 now = now_jiffies();

	if (s->state != SLOT_ARMED)
		s->count = passed(s->seen + ctl.idle, now) ? 1 : s->count + 1;
	s->seen = now;
	if (reason == REASON_BELOW_THRESHOLD && s->count >= ctl.threshold)
		return REASON_LEARNING;
	return reason;
}

/* Packets that XDP gives to the kernel wait in GRO's list until the end of the NAPI poll,
 * hits in the devmap's bulk queue are sent before that (veth_poll(); drivers likewise). If
 * the first packet of a batch armed the flow, hits would overtake the rest: so they take
 * the way of the rest until all of it came to TC ingress. Some may never come (the kernel
 * was out of memory): two jiffies after the last one nothing can be in that list any more. */
static __always_inline int flow_drained(struct slot *s, __u32 *seq)
{
	if (s->given != s->taken && !passed(s->seen + 2, now_jiffies()))
		return 0;
	if (flow_lock(s, *seq)) {
		s->flags &= ~SLOT_DRAIN;
		s->given = s->taken;
		flow_unlock(s);
		*seq += 2;
	}
	return 1;
}

/* Must TC egress see what the kernel makes of this packet? */
static __always_inline int is_due(enum reason reason)
{
	return reason == REASON_LEARNING || reason == REASON_LEASE_ENDED || reason == REASON_OLD_GENERATION;
}

/* The wire key of the other direction. */
static __always_inline void reverse_key(const struct slot *s, struct flow_key *k, struct flow_words *w)
{
	*k = (struct flow_key){
		.saddr = s->daddr, .daddr = s->saddr, .sport = s->dport, .dport = s->sport,
		.kind = kind_of(s->oif, family_of(&s->key), proto_of(&s->key)),
	};
	if (family_of(k) == 6) {
		__builtin_memcpy(w->saddr, s->out6.daddr, sizeof(w->saddr));
		__builtin_memcpy(w->daddr, s->out6.saddr, sizeof(w->daddr));
	}
}

int flow_agrees(const struct slot *s, __u32 end, __u32 ack);

/* A packet that the kernel gets moves the evidence, too. What does not follow the last one needs a second
 * witness; only the first packet after a pause does not, if it comes from the right station. */
static __always_inline void flow_evidence_slow(struct slot *s, const struct frame *f)
{
	if (!has_evidence(f))
		return;
	if (s->flags & SLOT_LIBERAL && (is_watched(s) || (s->state == SLOT_ARMED && !same_macs(s, f))) &&
	    !evidence_follows(s, end_of(f), ack_of(f)) && !flow_agrees(s, end_of(f), ack_of(f)))
		return;
	flow_evidence_any(s, f);
}

/* A packet that flow_check() gave to the kernel. One that differs from what is armed
 * teaches nothing while the lease lasts. */
static __always_inline enum reason flow_slow(struct slot *s, const struct frame *f, enum reason reason)
{
	flow_evidence_slow(s, f);
	if (reason == REASON_BELOW_THRESHOLD || is_due(reason))
		reason = flow_sighted(s, f, reason);
	else if (reason == REASON_CLOSED && passed(s->lease, now_jiffies()))
		s->state = SLOT_SEEN;
	/* while it is due, TC egress knows better why it is not learned */
	if (reason != REASON_LEARNING || s->why == REASON_BELOW_THRESHOLD)
		s->why = reason;
	return reason;
}

#endif
