/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sight.h: TC ingress writes down what a packet looked like that is due for
 * learning; TC egress finds it again by the skb pointer, on the same CPU.
 *
 * skb memory is reused at once, so every packet that is not sighted erases the sighting
 * that an earlier one left under its pointer, and a sighting expires after SIGHTING_AGE.
 */
#ifndef SHUNT_SIGHT_H
#define SHUNT_SIGHT_H

#include "skb.h"

/* sk_buffs are 256 bytes apart; two under way in one row cost a lesson, no more. */
static __always_inline struct sighting *sighting_of(__u64 cpu, const struct sk_buff *k)
{
	__u32 low = (__u64)k;

	asm("" : "+w"(low));	/* half a register is no pointer any more: the verifier lets nobody shift one */
	return row_of(sightings, cpu, SIGHTINGS, (low >> 8) % SIGHTINGS, sizeof(struct sighting));
}

static __always_inline void sight_forget(struct sighting *g, const struct sk_buff *k)
{
	if (g->skb == (__u64)k)
		g->skb = 0;
}

/* The checksum field of L4, 0 where NAT touches none. */
static __always_inline __u16 l4_sum(const struct frame *f)
{
	__u32 at = l4_sum_at(f->proto);

	return at && within(f, f->l4 + at, 2) ? *(__u16 *)(f->l4 + at) : 0;
}

static __always_inline void sight(struct sighting *g, struct __sk_buff *skb, struct sk_buff *k,
				  const struct frame *f, const struct place *at)
{
	struct iphdr *ip = f->l3;

	g->skb = (__u64)k;
	g->time = bpf_ktime_get_ns();
	g->key = f->key;
	g->bucket = at->bucket;
	g->way = at->way;
	g->gen = ctl.gen;	/* now: the kernel has not decided yet */
	g->clock = ctl.clock;
	g->label = label_of(f);
	g->len = ETH_HLEN + f->l3_len;	/* ip_rcv_core() trims padding and trailers */
	if (f->family == 4) {
		g->id = ip->id;
		g->frag = ip->frag_off;
		g->ttl = ip->ttl;
	} else {
		g->in6 = f->in6;
		g->id = 0;
		g->frag = 0;
		g->ttl = ((struct ipv6hdr *)f->l3)->hop_limit;
	}
	g->l4_sum = l4_sum(f);
	g->tos = tos_of(f);
	g->partial = BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL;
	g->gso = skb->gso_size != 0;
	__builtin_memcpy(g->dmac, f->data, 12);
}

#endif
