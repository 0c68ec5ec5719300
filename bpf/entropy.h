/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * entropy.h: what tells the flows in an LSP apart, as one number. RFC 6790 4.3 and RFC 7325
 * 2.4.5: an entropy label alone if there is one; else the labels, without TTL, S and TC, and
 * special-purpose ones not at all; and if what is below begins as IP does, its addresses,
 * protocol and ports, which are there only in packets that are whole and without options.
 *
 * The multiplier is the flow table's, which stays as long as the data path does, so a flow
 * keeps its way. Read by mpls.h and relabel.h.
 */
#ifndef SHUNT_ENTROPY_H
#define SHUNT_ENTROPY_H

static __always_inline __u64 mix(__u64 h, __u64 with)
{
	h = (h ^ with) * ctl.mix;
	return h ^ h >> 32;
}

static __always_inline __u64 mix_ports(__u64 h, const void *data, const void *end, __u32 at, __u8 proto)
{
	__u32 ports;

	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_SCTP)
		return h;
	return lse_at(data, end, at, &ports) ? mix(h, ports) : h;
}

static __always_inline __u64 mix_packet(__u64 h, const void *data, const void *end, __u32 at)
{
	const struct iphdr *ip = data + (at & NEAR);
	const struct ipv6hdr *six = (const void *)ip;

	if ((const void *)(ip + 1) > end)
		return h;
	if (ip->version == 4) {
		h = mix(h, *(const dword *)&ip->saddr);
		h = mix(h, ip->protocol);
		if (ip->ihl != 5 || ip->frag_off & wire16(0x3fff))
			return h;
		return mix_ports(h, data, end, at + sizeof(*ip), ip->protocol);
	}
	if (ip->version != 6 || (const void *)(six + 1) > end)
		return h;
	for (int i = 0; i < 4; i++)
		h = mix(h, ((const dword *)&six->saddr)[i]);
	h = mix(h, six->nexthdr);
	return mix_ports(h, data, end, at + sizeof(*six), six->nexthdr);
}

/* Once more, so that each bit of the sum is in each bit of the answer. */
static __always_inline __u32 done(__u64 h) { return mix(h, 0) >> 32; }

/* 0, but the verifier is not told: it would follow each place in a stack by itself. Any number of 32
 * bits, or sums with it would still have bounds, and those of each place be others. */
static __always_inline __u32 nothing(void) { return OUR(nhlfes[0].segment); }

/* Of the frame as it came in, an IP packet if it is `bare`. Not static, as dscp_below() is not. */
__noinline __u32 hash_of(struct xdp_md *ctx, __u32 bare)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 at = ETH_HLEN + nothing(), lse;
	__u64 h = 0;

	if (bare)
		return done(mix_packet(h, data, end, at));
	for (int i = 0; i < LABEL_DEEP && lse_at(data, end, at, &lse); i++) {
		at += LSE;
		if (label_in(lse) == ELI && !(lse & BOTTOM))	/* what follows it says all */
			return lse_at(data, end, at, &lse) ? done(mix(0, label_in(lse))) : 0;
		if (label_in(lse) == EXTENSION && !(lse & BOTTOM) && lse_at(data, end, at, &lse))
			at += LSE;	/* what follows it is special, too (RFC 7274 3.1) */
		else if (label_in(lse) >= SPECIAL)
			h = mix(h, label_in(lse));
		if (lse & BOTTOM)
			return done(mix_packet(h, data, end, at));
	}
	return done(h);
}

/* Never one of the special-purpose labels (RFC 6790 3). */
static __always_inline __u32 entropy_label(__u32 hash)
{
	__u32 label = hash >> 12;

	return label < SPECIAL ? label | SPECIAL : label;
}

#endif
