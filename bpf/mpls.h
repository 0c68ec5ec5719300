/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpls.h: the way of a packet through the label tables (RFC 3031, 3032). walk() goes from label
 * to label until an NHLFE says where the packet goes, and writes nothing; relabel.h then makes of
 * the frame what was found. What a form does, and in which order, is said at lfib.Form
 * (internal/lfib), which compiles the tables; internal/dataplane writes them. They hold no loop,
 * and all walks are bounded here again.
 *
 * TTL and TC go by RFC 3443 and RFC 3270, by the model of each NHLFE; where those leave a
 * choice: docs/decisions/0009-label-switching.md.
 */
#ifndef SHUNT_MPLS_H
#define SHUNT_MPLS_H

#include "verdict.h"
#include "maps_mpls.h"
#include "flow.h"
#include "parse.h"

enum { LSE = 4, BOTTOM = 0x100, NEAR = 0x1ff };

/* Special-purpose labels (RFC 3032 2.1, 5586, 6790, 7274). */
enum { EXPLICIT_NULL = 0 /* of IPv4 */, ROUTER_ALERT = 1, EXPLICIT_NULL6 = 2, ELI = 7, GAL = 13, EXTENSION = 15, SPECIAL = 16 };

static __always_inline __u32 label_in(__u32 lse) { return lse >> 12; }
static __always_inline __u32 tc_in(__u32 lse) { return lse >> 9 & 7; }
static __always_inline __u32 ttl_in(__u32 lse) { return lse & 0xff; }

/* The same label and S. */
static __always_inline __u32 lse_with(__u32 lse, __u32 tc, __u32 ttl) { return (lse & ~0xeffu) | tc << 9 | ttl; }

enum { NONE = 0x100 };		/* no TTL, no model: none of them is so large */

/* What is known of a packet on its way through the tables. */
struct walk {
	__u32 top;		/* where what is on top begins: a label, or the payload */
	__u32 lse;		/* that label in host order, as it is to be: uniform pops have changed it */
	__u32 bottom;		/* no label is left */
	__u32 popped;		/* the label popped last */
	__u32 model;		/* of that pop, if it was done since the last look-up or choice; else NONE */
	__u32 ceiling;		/* TTL that a uniform pop hands to the payload; else NONE */
	__u32 class;		/* TC that a choice goes by */
	__u32 exposed;		/* no, it goes by what is on top (RFC 3270 2.6.2.2) */
	__u32 space, segment;	/* where the last look-up was, and its row of counters */
	__u32 entered;		/* NHLFEs */
	__u32 pops;		/* to be done */
	__u32 family;		/* of the payload, as an explicit null says; 0: any */
	__u32 octets;		/* of labels and payload, as they came in */
	__u32 bare;		/* it came in without labels, its TTL counted down (impose.h) */
	__u32 row, end;		/* of the NHLFE that is to be done, and how it ends; 0: look up */
};

/* A word of the frame in host order. */
static __always_inline int lse_at(const void *data, const void *end, __u32 at, __u32 *lse)
{
	const void *p = data + (at & NEAR);

	if (p + LSE > end)
		return 0;
	*lse = __builtin_bswap32(*(const word *)p);
	return 1;
}

static __always_inline const struct ilm *ilm_platform(__u32 label)
{
	return row_at(platform, label & (LABELS - 1), sizeof(struct ilm));
}

/* 0: there is no such space. */
static __noinline const struct ilm *ilm_of(__u32 space, __u32 label)
{
	void *labels;

	if (!space)
		return ilm_platform(label);
	labels = bpf_map_lookup_elem(&label_spaces, &space);
	return labels ? bpf_map_lookup_elem(labels, &label) : 0;
}

/* The row that an NHLFE is in now. */
static __always_inline __u32 row_of_nhlfe(__u32 n)
{
	const __u32 *row = row_at(nhlfe_rows, LOADED(n, &, NHLFES), sizeof(*row));

	return OUR(*row);
}

static __always_inline const struct nhlfe *nhlfe_at(__u32 row)
{
	const struct nhlfe *n = row_at(nhlfes, LOADED(row, &, NHLFE_ROWS), sizeof(*n));

	forget(n);		/* what it is made of: one register is enough */
	return n;
}

static __always_inline __u32 chosen(const struct nhlfe *n, __u32 key)
{
	const struct choice *c = row_at(choices, LOADED(n->choice, &, CHOICES), sizeof(*c));

	return row_of_nhlfe(c->nhlfe[key & (LABEL_CHOICES - 1)]);
}

static __always_inline const struct adjacency *adjacency_of(__u32 n)
{
	return &adjacencies[n & (LABEL_ADJACENCIES - 1)];
}

static __always_inline void count_segment(struct segment *s, __u32 octets)
{
	s->packets++;
	s->octets += octets;
}

/* RFC 3813: an error is the packet's own fault, a discard is not. */
static __always_inline void lose(__u32 segment, enum reason reason)
{
	struct loss *s = loss_at(this_cpu(), segment);

	if (reason >= REASON_MPLS_DISCARD)
		s->discards++;
	else
		s->errors++;
}

/* IP of which version begins at `at`, with a whole header; 0: it is not IP, as far as its first
 * four bits tell (RFC 7325 2.4.5.2). */
static __always_inline __u32 version_at(const void *data, const void *end, __u32 at)
{
	const struct iphdr *ip = data + (at & NEAR);

	if ((const void *)(ip + 1) > end)
		return 0;
	if (ip->version == 4)
		return 4;
	return ip->version == 6 && (const void *)ip + sizeof(struct ipv6hdr) <= end ? 6 : 0;
}

static __always_inline __u32 tos_at(const void *data, const void *end, __u32 at, __u32 version)
{
	__u32 first = 0;

	lse_at(data, end, at, &first);
	return version == 4 ? first >> 16 & 0xff : first >> 20 & 0xff;
}

/* DSCP of the IP packet below the labels from `at` on, the first of which is `lse`; under 0: minus
 * the reason why there is none. Not static: the verifier looks at it once, for any arguments. */
__noinline int dscp_below(struct xdp_md *ctx, __u32 at, __u32 lse, __u32 bottom)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 version;

	for (int i = 0; !bottom; i++) {
		if (i == LABEL_DEEP)
			return -REASON_MPLS_DEPTH;
		if (i && !lse_at(data, end, at, &lse))
			return -REASON_MPLS_MALFORMED;
		at += LSE;
		bottom = lse & BOTTOM;
	}
	version = version_at(data, end, at);
	return version ? (int)tos_at(data, end, at, version) >> 2 : -REASON_MPLS_PAYLOAD;
}

static __always_inline __u8 mapped(__u8 map, __u32 key)
{
	forget(key);		/* that it is a DSCP: the verifier does not know */
	return label_maps[map].to[key & 63];	/* LABEL_MAPS of them */
}

#include "entropy.h"

/* The label on top goes, and with it an entropy label right below it (RFC 6790 4.2). */
static __always_inline enum reason pop(struct walk *w, const void *data, const void *end, __u32 flags)
{
	__u32 top = w->lse, entropy;

	if (w->bottom)
		return REASON_MPLS_MALFORMED;
	if (w->exposed)
		w->class = tc_in(top);
	w->exposed = flags & NHLFE_SHORT_PIPE;
	w->model = flags & (NHLFE_PIPE | NHLFE_SHORT_PIPE);
	w->popped = top;
	w->ceiling = NONE;
	w->top += LSE;
	w->bottom = top & BOTTOM;
	if (!w->bottom && !lse_at(data, end, w->top, &w->lse))
		return REASON_MPLS_MALFORMED;
	if (!w->bottom && label_in(w->lse) == ELI) {
		if (w->lse & BOTTOM || !lse_at(data, end, w->top + LSE, &entropy))
			return REASON_MPLS_MALFORMED;
		w->top += 2 * LSE;
		w->bottom = entropy & BOTTOM;
		if (!w->bottom && !lse_at(data, end, w->top, &w->lse))
			return REASON_MPLS_MALFORMED;
	}
	if (w->model)
		return REASON_HIT;
	if (w->bottom)
		w->ceiling = ttl_in(top);
	else
		w->lse = lse_with(w->lse, tc_in(top), ttl_in(top));
	return REASON_HIT;
}

/* The DSCP that a payload is to have: what nobody re-marked on the way comes out as it went in,
 * else a uniform pop hands on its class. */
static __always_inline __u32 handed(const struct walk *w, __u32 dscp)
{
	if (!w->bottom || w->ceiling == NONE || dscp >> 3 == tc_in(w->popped))
		return dscp;
	return tc_in(w->popped) << 3;
}

/* A label below 16 that has no entry of its own; HIT: an explicit null, which is popped. */
static __always_inline enum reason special(const struct walk *w)
{
	switch (label_in(w->lse)) {
	case EXPLICIT_NULL:
	case EXPLICIT_NULL6:
		return REASON_HIT;
	case ROUTER_ALERT:	/* RFC 3032 2.1: anywhere but at the bottom */
		return w->lse & BOTTOM ? REASON_MPLS_MALFORMED : REASON_MPLS_ALERT;
	case GAL:		/* RFC 5586 */
		return REASON_MPLS_OAM;
	}
	return label_in(w->lse) < SPECIAL ? REASON_MPLS_SPECIAL : REASON_MPLS_NO_LABEL;
}

/* One NHLFE more, before any of it is done. */
static __always_inline enum reason enter(struct walk *w, __u32 row, const struct nhlfe *n)
{
	w->row = row;
	w->end = n->end;
	w->pops = n->pops - (n->flags & NHLFE_SWAP ? 1 : 0);
	w->model = NONE;
	return n->end == NHLFE_DROP || n->end == NHLFE_NONE ? REASON_MPLS_DISCARD : REASON_HIT;
}

static __always_inline enum reason look_up(struct walk *w, const struct nhlfe **at, const void *data, const void *end)
{
	enum reason reason;
	const struct ilm *i;

	if (++w->entered > LABEL_LOOKUPS)
		return REASON_MPLS_DEPTH;
	w->class = tc_in(w->lse);
	w->exposed = 0;
	i = ilm_of(w->space, label_in(w->lse));
	if (i) {
		__u32 row = row_of_nhlfe(i->nhlfe);
		const struct nhlfe *n = nhlfe_at(row);

		if (n->end == NHLFE_BY_LABEL) {	/* the label has entries for some TCs */
			row = chosen(n, w->class);
			n = nhlfe_at(row);
		}
		if (n->end != NHLFE_NONE) {
			w->segment = i->segment;
			count_segment(&segment_at(segments_of(this_cpu()), i->segment)->in, w->octets);
			*at = n;
			return enter(w, row, n);
		}
	}
	reason = special(w);
	if (reason)
		return reason;
	w->family = label_in(w->lse) + 4;
	reason = pop(w, data, end, 0);
	if (!w->bottom)
		w->family = 0;	/* RFC 4182: elsewhere it says nothing */
	return reason;
}

/* An NHLFE that stands for several: on with the one that it is for this packet. */
static __always_inline enum reason choose(struct xdp_md *ctx, struct walk *w, const struct nhlfe **at)
{
	const struct nhlfe *n = *at;
	int key = w->class;
	__u32 row;

	if (n->end == NHLFE_BY_DSCP || (n->end == NHLFE_BY_TC && w->exposed && w->bottom)) {
		key = dscp_below(ctx, w->top, w->lse, w->bottom);
		if (key < 0)
			return -key;
		if (n->end == NHLFE_BY_TC)
			key >>= 3;
		else
			key = handed(w, key);
	} else if (n->end == NHLFE_BY_HASH) {
		key = hash_of(ctx, w->bare);
	} else if (w->exposed) {
		key = tc_in(w->lse);
	}
	row = chosen(n, key);
	n = nhlfe_at(row);
	if (n->end == NHLFE_NONE)
		return REASON_MPLS_DISCARD;
	if (++w->entered > LABEL_LOOKUPS)
		return REASON_MPLS_DEPTH;
	*at = n;
	return enter(w, row, n);
}

enum { MORE = REASONS };	/* the walk goes on */

/* One step of it, from the NHLFE at `*at`, 0: look up; HIT: the packet is at its end. */
static __always_inline enum reason step(struct xdp_md *ctx, struct walk *w, const struct nhlfe **at, const void *data,
					const void *end)
{
	const struct nhlfe *n = *at;
	enum reason reason;

	if (!n) {
		reason = look_up(w, at, data, end);
		return reason || (!*at && w->bottom) ? reason : MORE;
	}
	if (w->pops) {
		w->pops--;
		reason = pop(w, data, end, n->flags);
		return reason ? reason : MORE;
	}
	if (n->end == NHLFE_PEEK) {
		if (n->space)
			w->space = n->space - 1;
		*at = 0;
		w->row = 0;
		w->end = NHLFE_NONE;
		return w->bottom ? REASON_HIT : MORE;	/* nothing is left to look up */
	}
	if (n->end < NHLFE_BY_TC)
		return REASON_HIT;
	reason = choose(ctx, w, at);
	return reason ? reason : MORE;
}

/* From its NHLFE, or the label on top, until it is known what becomes of the packet; HIT: the last NHLFE
 * says, or without one it is this host's. Not static, as dscp_below() is not. */
__noinline enum reason walk(struct xdp_md *ctx, struct walk *w)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	enum reason reason = MORE;
	const struct nhlfe *at = 0;
	struct counting it;

	if (!w)			/* never, but the verifier asks */
		return REASON_MPLS_MALFORMED;
	if (w->row) {
		at = nhlfe_at(w->row);
		reason = enter(w, w->row, at);
		if (reason)
			return reason;
		reason = MORE;
	}
	bpf_iter_num_new(&it, 0, LABEL_STEPS);
	while (reason == MORE && bpf_iter_num_next(&it))
		reason = step(ctx, w, &at, data, end);
	bpf_iter_num_destroy(&it);
	return reason == MORE ? REASON_MPLS_DEPTH : reason;
}

#endif
