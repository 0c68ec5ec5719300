/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * differ.h: the always-on comparison. When an armed entry is learned again, what it says is
 * held against what the kernel did just now. In one generation nothing was announced, so a
 * difference is one that shunt repeated without knowing better, until its lease ended: it
 * is counted (`changed`), and the daemon is sent both forms.
 *
 * Compared is what the egress shows: addresses, ports, MACs, DSCP, interface, mark, priority
 * and MTU. If the flow itself now comes in with another DSCP, what follows from that is no
 * difference. slot_arm() calls it before it writes.
 */
#ifndef SHUNT_DIFFER_H
#define SHUNT_DIFFER_H

#include "sight.h"
#include "edit.h"

/* What is learned, gathered before the slot is touched. */
struct lesson {
	struct rewrite rw;
	__u32 lease;		/* jiffies from now */
	__u16 mtu;
	__u8 flags;
	__u8 scale, reverse_scale;	/* of the windows that the two sides advertise */
	__u32 end, ack;		/* where conntrack saw this direction last */
	__u16 zone, reverse_zone;	/* conntrack's, of the two directions */
};

/* Addresses, ports and checksum, then the MACs: the rewrite without the index of the
 * egress, which is the daemon's affair, and without l3_step, which follows from the rest. */
static __always_inline __u32 rewrite_differs(const struct slot *s, const struct rewrite *rw)
{
	const word *a = (const void *)&s->saddr, *b = (const void *)rw;
	__u32 differ = (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (s->l4_delta ^ rw->l4_delta) |
		       (a[4] ^ b[4]) | (a[5] ^ b[5]) | (a[6] ^ b[6]);

	if (family_of(&s->key) == 6) {
		a = (const void *)&s->out6;
		b = (const void *)&rw->out6;
		for (int i = 0; i < 6; i++)
			differ |= a[i] ^ b[i];
	}
	return differ;
}

static __always_inline void form_of(struct form *to, const void *line1)
{
	__builtin_memcpy(&to->saddr, line1, 12);
	__builtin_memcpy(to->dmac, line1 + offsetof(struct rewrite, mac), 12);
	to->zero = 0;
}

/* Tell the daemon, if at least half of the ring is free: requests go before. */
static __always_inline void tell_difference(struct __sk_buff *skb, const struct slot *s, const struct lesson *l)
{
	struct difference *d;

	if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > EVENTS / 2)
		return;
	d = bpf_ringbuf_reserve(&events, sizeof(*d), 0);
	if (!d)
		return;
	d->kind = EVENT_DIFFERENCE;
	d->gen = s->gen;
	d->key = s->key;
	d->in6 = s->in6;
	d->packets = s->packets;
	form_of(&d->before, &s->saddr);
	d->before.oif = s->oif;
	d->before.mark = s->mark;
	d->before.priority = s->priority;
	d->before.mtu = s->mtu;
	d->before.dscp = s->dscp_out;
	d->before.out6 = s->out6;
	form_of(&d->after, &l->rw);
	d->after.oif = skb->ifindex;
	d->after.mark = skb->mark;
	d->after.priority = skb->priority;
	d->after.mtu = l->mtu;
	d->after.dscp = l->rw.dscp;
	d->after.out6 = l->rw.out6;
	bpf_ringbuf_submit(d, 0);
}

/* Does the kernel do something else than the entry says? Not static: the egress program has
 * no stack left, and the verifier looks at this once, for any arguments. */
__noinline int differ(struct __sk_buff *skb, const struct slot *s, const struct sighting *g, const struct lesson *l)
{
	__u32 differ;

	if (!s || !g || !l)		/* never, but the verifier asks */
		return 0;
	differ = rewrite_differs(s, &l->rw) | (s->oif ^ skb->ifindex) | (s->mtu ^ l->mtu);
	if (s->dscp_in == (g->tos & 0xfc))
		differ |= (s->dscp_out ^ l->rw.dscp) | (s->mark ^ skb->mark) | (s->priority ^ skb->priority);
	if (!differ)
		return 0;
	tell_difference(skb, s, l);
	return 1;
}

_Static_assert(offsetof(struct rewrite, mac) == offsetof(struct slot, dmac_out) - offsetof(struct slot, saddr), "form");

#endif
