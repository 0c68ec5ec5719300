/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * skb.h: a frame of an skb, for both sides of TC. Its pointers go with every helper that
 * moves packet data.
 */
#ifndef SHUNT_SKB_H
#define SHUNT_SKB_H

#include "parse.h"
#include "flow.h"

static __always_inline void point(struct frame *f, struct __sk_buff *skb)
{
	f->data = (void *)(long)skb->data;
	f->end = (void *)(long)skb->data_end;
	f->len = skb->len;
}

/* Pointers back after a helper moved the data; sizes were checked before. */
static __always_inline int again(struct frame *f, struct __sk_buff *skb)
{
	point(f, skb);
	frame_point(f, f->family);
	return frame_fits(f, f->family);
}

/* Takes the key of a frame that parse() found nothing wrong with. All the ways through
 * parse.h meet here, and what the verifier knows on each of them (the protocol, how much
 * of the packet is there) is forgotten, by pointers and a protocol that are read anew: or
 * it would follow every one of them to the end of the program, each through all that the
 * others went through. */
static __always_inline int take_frame(struct frame *f, struct __sk_buff *skb)
{
	const __u8 *proto;

	take_key(f);
	if (!again(f, skb))
		return 0;
	proto = f->l3 + (f->family == 4 ? offsetof(struct iphdr, protocol) : offsetof(struct ipv6hdr, nexthdr));
	f->proto = OUR(*proto);
	return 1;
}

#endif
