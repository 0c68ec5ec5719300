/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lsp.h: which packets that leave the kernel get labels (RFC 3031: FTN). TC egress asks, of what
 * was forwarded and of this host's own: after the kernel's firewall and NAT have had their say, and
 * where it is known whether a flow can be repeated so. It hands such a packet to the imposer, a veth
 * pair: checksums are completed and long packets cut while they are still IP, which cannot be done
 * behind the labels. impose.h is at its other end.
 *
 * What is left alone whatever the tables say: bridged frames, tagged ones, those of packet sockets,
 * groups, and what belongs to the link (RFC 3927 2.7, RFC 4291 2.5.6, RFC 4861). Once labels have
 * outlived their daemon for long enough, packets are the kernel's again.
 */
#ifndef SHUNT_LSP_H
#define SHUNT_LSP_H

#include "flow.h"

enum { ND_FIRST = 133, ND_LAST = 137, LINK_LOCAL = 0xa9fe, LINK_LOCAL6 = 0xfe80 };

/* The socket of this host that sent a packet. What a veth or tap brought from elsewhere may still have
 * its sender's, unless it has been through ip_rcv_core(). */
static __always_inline struct sock *own_socket(struct sk_buff *k)
{
	struct sock *sk = k->sk;

	return sk && BPF_CORE_READ(sk, __sk_common.skc_net.net) == BPF_CORE_READ(k, dev, nd_net.net) ? sk : 0;
}

/* Did the kernel route this frame to where it leaves, for one station? */
static __always_inline int is_routed(struct __sk_buff *skb, struct sk_buff *k, const struct ethhdr *eth)
{
	struct sock *sk = own_socket(k);
	__u8 own[ETH_ALEN];

	if (skb->vlan_present || eth->h_dest[0] & 1)
		return 0;
	if (bpf_probe_read_kernel(own, sizeof(own), (void *)BPF_CORE_READ(k, dev, dev_addr)))
		return 0;
	for (int i = 0; i < ETH_ALEN; i++)
		if (own[i] != eth->h_source[i])
			return 0;
	return !sk || BPF_CORE_READ(sk, __sk_common.skc_family) != AF_PACKET;
}

static __always_inline const __u32 *lsp_of_ipv4(struct __sk_buff *skb)
{
	struct prefix4 to = { .bits = 32 };

	if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, daddr), &to.addr, sizeof(to.addr)) ||
	    __builtin_bswap32(to.addr) >> 16 == LINK_LOCAL)
		return 0;
	return bpf_map_lookup_elem(&lsps4, &to);
}

static __always_inline const __u32 *lsp_of_ipv6(struct __sk_buff *skb)
{
	struct prefix6 to = { .bits = 128 };
	struct ipv6hdr ip;
	__u8 type = 0;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(to.addr, &ip.daddr, sizeof(to.addr));
	if ((__builtin_bswap32(to.addr[0]) >> 16 & 0xffc0) == LINK_LOCAL6)
		return 0;
	if (ip.nexthdr == IPPROTO_ICMPV6 &&
	    (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &type, sizeof(type)) || (type >= ND_FIRST && type <= ND_LAST)))
		return 0;
	return bpf_map_lookup_elem(&lsps6, &to);
}

/* The longest IP packet that may get labels as this one does; 0: it gets none. Not static: the
 * verifier looks at it once. */
__noinline __u32 lsp_of(struct __sk_buff *skb)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	const __u32 *mtu = 0;
	struct ethhdr eth;

	if (orphaned(now_jiffies()))
		return 0;
	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)) || !is_routed(skb, k, &eth))
		return 0;
	if (eth.h_proto == wire16(ETH_P_IP))
		mtu = lsp_of_ipv4(skb);
	else if (eth.h_proto == wire16(ETH_P_IPV6))
		mtu = lsp_of_ipv6(skb);
	return mtu ? *mtu : 0;
}

#endif
