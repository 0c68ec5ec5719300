/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sample.h: a small memory for packets that no slot remembers, so that `shunt explain` can
 * say why a flow is slow whose packets are all fragments, have options or a tag, or find
 * the table full. The ways out that know no slot call it, after everything else; a hit and
 * a packet that is counted for its flow never come here.
 *
 * Each CPU has SAMPLES places. Key and reason choose the place, and who comes later takes
 * it: it is a memory for questions that are asked soon, and nothing is decided by it. At
 * most A_JIFFY packets are looked at in a jiffy, so a flood of exceptions costs next to
 * nothing more, and of a flow beside the flood a part of the packets is remembered.
 */
#ifndef SHUNT_SAMPLE_H
#define SHUNT_SAMPLE_H

#include "flow.h"
#include "parse.h"

enum { A_JIFFY = 16, VLAN_VID = 0x0fff };

/* What is to be said of a packet, in one number: a function that the verifier looks at by
 * itself takes five. */
static __always_inline __u32 about(__u32 reason, __u16 tag, int portless)
{
	return reason | (portless ? 0x100 : 0) | (__u32)tag << 16;
}

static __always_inline struct sample *sample_place(const struct flow_key *k, __u32 what)
{
	struct notebook *n = row_of(notebooks, this_cpu(), 1, 0, sizeof(struct notebook));
	__u32 now = now_jiffies();
	__u64 h;

	if (n->jiffy != now) {
		n->jiffy = now;
		n->left = A_JIFFY;
	}
	if (!n->left)
		return 0;
	n->left--;
	h = *addresses_of(k) * ctl.secret[0] + *rest_of(k) * ctl.secret[1] + what * ctl.mix;
	return &n->samples[h >> 56];
}

static __always_inline int sample_is(const struct sample *s, const struct flow_key *k,
				     const struct flow_words *w, __u32 what)
{
	const word *a = (const void *)&s->in6, *b = (const void *)w;
	__u32 differ = (s->reason ^ what) & 0xff;

	for (int i = 0; i < 6; i++)
		differ |= a[i] ^ b[i];
	return !differ && s->tag == what >> 16 && *addresses_of(&s->key) == *addresses_of(k) &&
	       *rest_of(&s->key) == *rest_of(k);
}

/* Remember one packet. Not static: the verifier looks at such a function once, for any
 * arguments. On one CPU no two programs are in here at once. */
__noinline int sample_keep(const struct flow_key *k, const struct flow_words *w, __u32 what)
{
	struct sample *s;

	if (!k || !w)		/* never, but the verifier asks */
		return 0;
	s = sample_place(k, what);
	if (!s)
		return 0;
	s->seen = now_jiffies();
	if (sample_is(s, k, w, what)) {
		s->packets++;
		return 0;
	}
	__sync_fetch_and_add(&s->seq, 1);
	s->key = *k;
	s->in6 = *w;
	s->packets = 1;
	s->reason = what;
	s->portless = what >> 8 & 1;
	s->tag = what >> 16;
	__sync_fetch_and_add(&s->seq, 1);
	return 0;
}

/* Where the L4 header of a packet begins, 0 if it has none here; addresses and protocol go
 * into the key. What the packet says of itself need not be true. */
static __always_inline __u32 sample_ip(const void *data, const void *end, __u32 at, __u16 type, __u32 port,
				       struct flow_key *k, struct flow_words *w)
{
	const struct ipv6hdr *six = data + at;
	const struct iphdr *ip = data + at;
	const word *words = data + at;

	if (type == wire16(ETH_P_IP) && (const void *)(ip + 1) <= end) {
		*addresses_of(k) = *(const dword *)(words + 3);
		k->kind = kind_of(port, 4, ip->protocol);
		return ip->ihl < 5 || ip->frag_off & wire16(0x1fff) ? 0 : at + ip->ihl * 4;
	}
	if (type == wire16(ETH_P_IPV6) && (const void *)(six + 1) <= end) {
		k->saddr = words[5];
		k->daddr = words[9];
		__builtin_memcpy(w->saddr, words + 2, sizeof(w->saddr));
		__builtin_memcpy(w->daddr, words + 6, sizeof(w->daddr));
		k->kind = kind_of(port, 6, six->nexthdr);
		return at + sizeof(*six);
	}
	return 0;
}

/* Ports, or an echo's id and type, into the key, as key_ports() has them. */
static __always_inline int sample_ports(const void *data, const void *end, __u32 at, struct flow_key *k)
{
	const struct icmp_echo *icmp = data + at;

	if (!at || (const void *)(icmp + 1) > end)
		return 0;
	switch (proto_of(k)) {
	case IPPROTO_TCP: case IPPROTO_UDP: case IPPROTO_SCTP: case IPPROTO_DCCP: case IPPROTO_UDPLITE:
		*(word *)&k->sport = *(const word *)icmp;
		return 1;
	case IPPROTO_ICMP: case IPPROTO_ICMPV6:
		k->dport = *(const __u16 *)icmp;
		if (icmp->type != 8 && icmp->type != 0 && icmp->type != 128 && icmp->type != 129)
			return 0;
		k->sport = icmp->id;
		return 1;
	}
	return 0;
}

/* A frame for whose flow nobody has looked. `tag`: the VLAN tag beside it. */
static __always_inline void sample_frame(const void *data, const void *end, __u32 port, __u16 tag, __u32 reason)
{
	struct flow_words w = {};
	struct flow_key k = {};
	const __u16 *ether = data;
	__u32 at = ETH_HLEN;
	__u16 type;

	if (data + ETH_HLEN + 4 > end)
		return;
	type = ether[6];
	if (type == wire16(ETH_P_8021Q) || type == wire16(ETH_P_AD)) {
		tag = wire16(ether[7]);
		type = ether[8];
		at += 4;
	}
	at = sample_ip(data, end, at, type, port, &k, &w);
	if (!k.kind)
		return;
	sample_keep(&k, &w, about(reason, tag & VLAN_VID, !sample_ports(data, end, at, &k)));
}

#endif
