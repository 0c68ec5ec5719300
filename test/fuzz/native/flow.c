/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * flow.c: bpf/flow.h and what judges FIN and RST (ends.h) against a table that knows nothing of buckets:
 * one record per key, searched from its start, with times that do not wrap. The input is a list of
 * operations on 48 keys in 32 slots; after each of them every key is looked up.
 *
 * A key comes in pairs: 2i and 2i+1 are the two directions of connection i, of TCP, behind
 * NAT. Some connections have a second pair of keys, at other ports: their packets moved. The clock starts
 * anywhere, mostly near its turn, and stops before it has turned
 * once, since from then on old leases seem good (flow.h, passed()).
 *
 * Input: start of the clock, secrets, operations (enum op) with what they take.
 */
#include "native.h"
#include "parse.h"
#include "flow.h"

static int load_bytes(void *ctx, uint32_t at, void *to, uint32_t size) { return -1; }

#undef BPF_CORE_READ
#define BPF_CORE_READ(from, field) (from)->field
#define bpf_csum_diff(from, from_size, to, to_size, seed) 0
#define LOAD_CONTEXT void
#define LOAD_BYTES load_bytes
#define CT_LOOKUP native_lookup
#include "ends.h"

/* Conntrack: it has no entry, or one with these flags. */
static struct nf_conn native_ct;
static int native_tracked;

struct nf_conn *native_lookup(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, struct bpf_ct_opts *opts, __u32 opts_size)
{
	return native_tracked ? &native_ct : 0;
}

void bpf_ct_release(struct nf_conn *ct) {}

enum { KEYS = 48, SLOTS = BUCKETS * WAYS, FRAME = 14 + 40 + 20 };

enum op { OP_PACKET, OP_TIME, OP_ARM, OP_CLOSE, OP_GENERATION, OP_WRITER, OP_LOOK, OP_DRAIN, OP_WATCH, OPS };

/* One flow, as it should be. */
struct record {
	int known, paired, liberal, zone;
	enum slot_state state;
	uint32_t count, gen, seq, ack, window, scale, watch;
	uint64_t seen, lease;
	struct slot *slot;
};

static struct record records[KEYS];
static uint64_t now;		/* the slow table's own clock: no wrap */
static uint64_t clock_from;	/* what of it the fast one is ahead */
static struct slot *held;	/* a writer is in */

static void set_clock(uint64_t t)
{
	now = t;
	native_now = t + clock_from;
}

static int is_six(int k) { return k % 8 >= 6; }

/* The key of the same packets at another port; -1: there is none. */
static int other_port(int k)
{
	switch (k / 2 % 8) {
	case 4: return k + 2;
	case 5: return k - 2;
	case 3: return k + 8;
	case 7: return k - 8;
	}
	return -1;
}

static int is_moved(int k) { return other_port(k) >= 0 && other_port(k) < k; }

/* Either direction of connection k / 2, from its own side; the client's is translated. */
static void key_of(int k, struct flow_key *key, struct flow_words *w)
{
	uint32_t n = (is_moved(k) ? other_port(k) : k) / 2, port = 1000 + n % 3, in = 1 + k % 2 + 2 * is_moved(k);

	memset(w, 0, sizeof(*w));
	if (k % 2)
		*key = (struct flow_key){ .saddr = 0x0a000001 + n / 3, .daddr = 0x0c000001, .sport = 80,
					  .dport = port + 5 * n, .kind = kind_of(in, is_six(k) ? 6 : 4, IPPROTO_TCP) };
	else
		*key = (struct flow_key){ .saddr = 0x0b000001, .daddr = 0x0a000001 + n / 3, .sport = port,
					  .dport = 80, .kind = kind_of(in, is_six(k) ? 6 : 4, IPPROTO_TCP) };
	key->saddr += k % 2 ? 0 : n << 8;
	if (is_six(k))
		for (int i = 0; i < 3; i++) {
			w->saddr[i] = (k % 2 ? 7 : 9) + n * i;
			w->daddr[i] = (k % 2 ? 11 : 7) + n * i;
		}
}

/* A segment of flow k, complete enough for all that looks at frames behind parse.h. */
struct segment {
	uint8_t bytes[FRAME];
	struct frame f;
};

static void segment(struct segment *s, int k, uint32_t seq, uint32_t ack, uint16_t window, uint8_t flags)
{
	struct tcphdr *tcp;
	uint8_t *ip;

	memset(s, 0, sizeof(*s));
	s->f = (struct frame){ .data = s->bytes, .end = s->bytes + FRAME, .len = FRAME };
	frame_point(&s->f, is_six(k) ? 6 : 4);
	s->bytes[0] = 2;
	s->bytes[11] = k;
	s->bytes[14] = is_six(k) ? 0x60 : 0x45;
	key_of(k, &s->f.key, &s->f.in6);
	s->f.proto = IPPROTO_TCP;
	s->f.port = port_of(&s->f.key);
	s->f.l4_len = 20 + 100;
	ip = s->f.l3;
	memcpy(ip + (is_six(k) ? 8 : 12), s->f.in6.saddr, 12);
	memcpy(ip + (is_six(k) ? 24 : 16), s->f.in6.daddr, 12);
	memcpy(ip + (is_six(k) ? 20 : 12), &s->f.key.saddr, 4);
	memcpy(ip + (is_six(k) ? 36 : 16), &s->f.key.daddr, 4);
	tcp = s->f.l4;
	tcp->source = s->f.key.sport;
	tcp->dest = s->f.key.dport;
	tcp->seq = __builtin_bswap32(seq);
	tcp->ack_seq = __builtin_bswap32(ack);
	tcp->window = __builtin_bswap16(window);
	tcp->doff = 5;
	((uint8_t *)tcp)[13] = flags;
}

static int slow_passed(uint64_t t) { return t <= now; }

/* May the slot of this flow be given away? */
static int slow_free(const struct record *r)
{
	if (!slow_passed(r->seen + ctl.idle))
		return 0;
	return r->state == SLOT_SEEN || slow_passed(r->lease + ctl.idle);
}

static struct record *owner_of(const struct slot *s)
{
	for (int i = 0; i < KEYS; i++)
		if (records[i].known && records[i].slot == s)
			return &records[i];
	return 0;
}

/* Every key is found where it is, or not at all; and no slot belongs to nobody. */
static void look_at_all(void)
{
	int known = 0, used = 0;

	for (int i = 0; i < KEYS; i++) {
		struct record *r = &records[i];
		struct place at = {};
		struct flow_words w;
		struct flow_key k;
		struct slot *s;

		key_of(i, &k, &w);
		s = flow_find(&k, &w, &at);
		known += r->known;
		WANT(s == (r->known ? r->slot : 0), "key %d", i);
		if (!s)
			continue;
		WANT(&bucket_at(at.bucket)->way[at.way] == s && at.seq == s->seq, "place of key %d", i);
		WANT(flow_torn(s, &at) == (s == held), "key %d", i);
		WANT(s->state == r->state, "state %d of key %d, not %d", r->state, i, s->state);
		WANT(s->count == r->count, "count %u of key %d, not %u", r->count, i, s->count);
		WANT(s->seen == (uint32_t)(r->seen + clock_from), "time of key %d", i);
		WANT(s->lease == (uint32_t)(r->lease + clock_from), "lease of key %d", i);
		WANT(s->tcp_seq == r->seq && s->tcp_ack == r->ack && s->tcp_wnd == r->window, "TCP of key %d", i);
		WANT(s->watch == r->watch, "watch %u of key %d, not %u", r->watch, i, s->watch);
	}
	for (int i = 0; i < SLOTS; i++)
		used += flows[i / WAYS].way[i % WAYS].state != SLOT_EMPTY;
	WANT(known == used, "%d keys in %d slots", known, used);
}

/* What a claim for this key may do: any free one of its four places, unless a writer is in. */
static struct slot *claim(int i)
{
	int free = 0, writer = 0, places = 0, plain = 0;
	struct record *r = &records[i];
	struct place at = {};
	struct flow_words w;
	struct flow_key k;
	struct slot *s;
	uint64_t h;

	key_of(i, &k, &w);
	h = flow_hash(&k, &w);
	for (int n = 0; n < 2 * WAYS; n++) {
		struct bucket *b = bucket_at(flow_bucket(h, n / WAYS));
		struct record *o;

		WANT(b >= flows && b < flows + BUCKETS, "key %d", i);
		s = &b->way[n % WAYS];
		o = owner_of(s);
		if (!o || slow_free(o)) {
			free++;
			writer += s == held;
			plain += s != held && !(o && o->liberal);
		}
	}
	s = flow_claim(&k, &w, &at);
	WANT(s || !free || writer, "a slot for key %d: %d are free", i, free);
	if (!s)
		return 0;
	h = flow_hash(&k, &w);
	for (int n = 0; n < 2 * WAYS; n++)
		places += s == &bucket_at(flow_bucket(h, n / WAYS))->way[n % WAYS];
	WANT(places, "one of the four places of key %d", i);
	WANT(s != held, "no slot that a writer is in");
	WANT(&bucket_at(at.bucket)->way[at.way] == s && at.seq == s->seq && !flow_torn(s, &at), "place of key %d", i);
	WANT(!s->flags && s->given == s->taken, "a slot like new");
	if (owner_of(s)) {
		WANT(slow_free(owner_of(s)), "nobody in use evicted by key %d", i);
		WANT(!owner_of(s)->liberal || !plain || writer, "idle TCP evicted at the last, by key %d", i);
		*owner_of(s) = (struct record){};
	}
	*r = (struct record){ .known = 1, .state = SLOT_SEEN, .slot = s, .seen = now, .lease = now - ctl.hz,
			      .seq = s->tcp_seq, .ack = s->tcp_ack };	/* worth nothing without a watch */
	WANT(!s->tcp_wnd && !s->tcp_scale && !s->watch && !s->zone, "no evidence of another flow");
	return s;
}

/* Is a number within `reach` of another, either way round the circle? */
static int near(uint32_t a, uint32_t b, uint32_t reach) { return a - b <= reach || b - a <= reach; }

static uint32_t slow_window(const struct record *r, uint32_t least)
{
	uint32_t window = r->window << r->scale;

	return window > least ? window : least;
}

static int slow_watched(const struct record *r) { return r->watch && r->watch == ctl.watch; }

/* Under 8 MB from the last one, and 8 MB behind it. */
static int slow_follows(uint32_t number, uint32_t last)
{
	return near(number, last, 8 << 20) && number != last + (8 << 20);
}

/* Has this side sent all of a segment before, not over 1 MB ago? */
static int slow_again(uint32_t end, uint32_t furthest)
{
	return near(end, furthest, 1 << 20) && (int32_t)(end - furthest) <= 0;
}

/* What a packet does to what is known of key i. */
static void evidence(int i, uint32_t seq, uint32_t ack, uint16_t window, int hit, int other_station)
{
	struct record *r = &records[i], *rev = &records[i ^ 1];
	int follows = slow_follows(seq + 100, r->seq) && slow_follows(ack, r->ack), moves = follows;

	if (!hit && !moves && r->paired && rev->known && slow_watched(rev))
		moves = near(seq + 100, rev->ack, slow_window(r, slow_window(rev, 8 << 20))) &&
			near(ack, rev->seq, slow_window(r, slow_window(rev, 8 << 20)));
	if (!hit && (!r->liberal || (!slow_watched(r) && !(r->state == SLOT_ARMED && other_station))))
		moves = 1;
	if (!moves)
		return;
	if (!follows || !(hit || r->watch) || !slow_again(seq + 100, r->seq))
		r->seq = seq + 100;
	r->ack = ack;
	r->window = window;
	if (!hit)
		r->watch = ctl.watch;
}

/* One packet, as both ways in treat it. */
static void packet(int i, struct input *in)
{
	uint32_t seq = take32(in), ack = take32(in);
	struct record *r = &records[i];
	uint16_t window = take16(in);
	unsigned odd = take8(in), edge = odd >> 4 & 3;
	enum reason reason, want;
	struct segment x;

	odd &= 3;
	if (edge == 1) {	/* about as far as the next one may be */
		seq = r->seq + (8 << 20) - 100 - (seq & 3);
		ack = r->ack + (ack & 1);
	} else if (edge == 2) {	/* sent again, or about as far behind as that may be */
		ack = ack & 1 << 9 ? r->ack : r->ack - (8 << 20) - 1 + (ack & 3);
		seq = r->seq - 100 - (seq & 1 << 9 ? (1 << 20) - 1 + (seq & 3) : seq & 3);
	} else if (edge == 3) {	/* where the other side says */
		seq = records[i ^ 1].ack - 100 + (int8_t)seq;
		ack = records[i ^ 1].seq + (int8_t)ack;
	}
	segment(&x, i, seq, ack, window, TCP_ACK);
	if (odd == 1)
		x.bytes[11] ^= 1;
	if (odd == 2)
		x.bytes[is_six(i) ? 14 : 15] ^= is_six(i) ? 1 : 4;	/* DSCP */
	if (odd == 3 && is_six(i))
		x.bytes[17] ^= 1;	/* flow label */
	if (!r->known && !claim(i))
		return;

	if (r->state == SLOT_CLOSED)
		want = REASON_CLOSED;
	else if (r->state == SLOT_SEEN)
		want = r->count < ctl.threshold ? REASON_BELOW_THRESHOLD : REASON_LEARNING;
	else if (r->gen != ctl.gen)
		want = REASON_OLD_GENERATION;
	else if (slow_passed(r->lease))
		want = REASON_LEASE_ENDED;
	else if (odd == 1)
		want = REASON_MAC_DIFFERS;
	else if (odd == 2)
		want = REASON_DSCP_DIFFERS;
	else
		want = odd == 3 && is_six(i) ? REASON_LABEL_DIFFERS : REASON_HIT;
	reason = flow_check(r->slot, &x.f);
	WANT(reason == want, "reason %d for key %d, not %d", want, i, reason);
	WANT(!!flow_good(r->slot, &x.f, now_jiffies()) ==
	     (!want && r->slot->flags & SLOT_XDP && !(r->slot->flags & SLOT_DRAIN)), "key %d", i);

	evidence(i, seq, ack, window, !want, odd == 1);
	if (!want) {
		flow_count(r->slot, &x.f, 1, x.f.l4_len);
		return;
	}
	if (want == REASON_BELOW_THRESHOLD || is_due(want)) {
		if (r->state != SLOT_ARMED)
			r->count = slow_passed(r->seen + ctl.idle) ? 1 : r->count + 1;
		r->seen = now;
		if (want == REASON_BELOW_THRESHOLD && r->count >= ctl.threshold)
			want = REASON_LEARNING;
	} else if (want == REASON_CLOSED && slow_passed(r->lease)) {
		r->state = SLOT_SEEN;
	}
	reason = flow_slow(r->slot, &x.f, reason);
	WANT(reason == want, "reason %d for key %d, not %d", want, i, reason);
}

/* What bpf/learn.h does in the end. */
static void arm(int i, struct input *in)
{
	struct record *r = &records[i];
	unsigned flags = take8(in), lease = take16(in);
	struct flow_words w;
	struct flow_key back;
	struct segment x;
	struct slot *s = r->slot;

	if (!r->known || r->state == SLOT_CLOSED || !flow_lock(s, s->seq))
		return;
	segment(&x, i, 0, 0, 0, TCP_ACK);
	key_of(i ^ 1, &back, &w);
	s->saddr = back.daddr;
	s->daddr = back.saddr;
	s->sport = back.dport;
	s->dport = back.sport;
	memcpy(s->out6.saddr, w.daddr, 12);
	memcpy(s->out6.daddr, w.saddr, 12);
	s->oif = port_of(&back);
	memcpy(s->dmac_in, x.bytes, 12);
	s->dscp_in = tos_of(&x.f) & 0xfc;
	s->label_in = label_of(&x.f);
	s->flags = flags & (SLOT_XDP | SLOT_DRAIN | SLOT_LIBERAL | SLOT_PAIRED);
	s->zone = r->zone = flags >> 7 ? 40000 + i : 0;
	s->tcp_scale = r->scale = take8(in) % 15;	/* RFC 7323 2.2 */
	s->given = flags >> 4;
	r->paired = flags & SLOT_PAIRED;
	r->liberal = flags & SLOT_LIBERAL;
	s->state = r->state = SLOT_ARMED;
	s->gen = r->gen = ctl.gen;
	s->count = r->count = 0;
	r->lease = now + 1 + lease;
	s->lease = r->lease + clock_from;
	flow_unlock(s);
}

#include "flowends.h"

static void drain(int i, struct input *in)
{
	struct record *r = &records[i];
	struct place at = {};
	int done, writer;

	if (!r->known || !(r->slot->flags & SLOT_DRAIN))
		return;
	r->slot->taken += take8(in);
	at.seq = r->slot->seq;
	writer = r->slot == held;
	done = r->slot->given == r->slot->taken || slow_passed(r->seen + 2);
	WANT(flow_drained(r->slot, &at.seq) == done, "key %d", i);
	WANT(!(r->slot->flags & SLOT_DRAIN) == (done && !writer), "key %d", i);
	WANT(at.seq == r->slot->seq, "place of key %d", i);
}

/* A writer comes to the slot of a flow, or the one that is in leaves. */
static void writer(int i)
{
	if (held) {
		flow_unlock(held);
		held = 0;
	} else if (records[i].known) {
		held = records[i].slot;
		WANT(flow_lock(held, held->seq), "nobody else in");
		WANT(!flow_lock(held, held->seq) && !flow_lock(held, held->seq - 1), "one writer at a time");
	}
}

static void begin(struct input *in)
{
	memset(flows, 0, sizeof(flows));
	memset(records, 0, sizeof(records));
	held = 0;
	clock_from = (uint64_t)(int16_t)take16(in) << (take8(in) % 17);
	set_clock(1 << 20);
	memset((void *)&ctl, 0, sizeof(ctl));
	for (int i = 0; i < 8; i++)
		ctl.secret[i] = ((uint64_t)take32(in) << 32 | take32(in)) | 1;
	ctl.mix = ((uint64_t)take32(in) << 32 | take32(in)) | 1;
	ctl.hz = ctl.idle = 1000;
	ctl.lease = 4000;
	ctl.threshold = 3;
	ctl.watch = 0xfffe;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	begin(&in);
	while (in.left && now < 1u << 31) {
		enum op op = take8(&in) % OPS;
		int i = take8(&in) % KEYS;

		switch (op) {
		case OP_PACKET: packet(i, &in); break;
		case OP_TIME: set_clock(now + (take8(&in) << (i % 9))); break;
		case OP_ARM: arm(i, &in); break;
		case OP_CLOSE: close_flow(i, &in); break;
		case OP_GENERATION: ctl.gen++; break;
		case OP_WATCH: ctl.watch = ctl.watch % 0xffff + 1; break;
		case OP_WRITER: writer(i); break;
		case OP_LOOK: if (!records[i].known) claim(i); break;
		case OP_DRAIN: drain(i, &in); break;
		case OPS: break;
		}
		look_at_all();
	}
	return 0;
}
