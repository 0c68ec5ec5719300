/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * parse.h: Ethernet, IPv4, IPv6 and L4 into a frame, or the reason why the kernel
 * must have it. Everything the kernel would drop, answer or reassemble is a reason
 * (RFC 1812 5.2.2 and 5.3, RFC 8200 3; ip_rcv_core(), ip6_rcv_core(), ip_forward()
 * and the protocols' nf_conntrack error checks). Writes nothing.
 *
 * REASON_HIT (0) means: a packet that may be repeated if its flow is armed.
 */
#ifndef SHUNT_PARSE_H
#define SHUNT_PARSE_H

#include "frame.h"
#include "csum.h"

enum { ETH_P_AD = 0x88a8, DF = 0x4000, GRE_KEY = 0x2000, GRE_SUM = 0x8000, GRE_VERSION = 7 };

static __always_inline __u16 wire16(__u16 host) { return __builtin_bswap16(host); }

static __always_inline enum reason parse_tcp(struct frame *f, __u32 room)
{
	struct tcphdr *tcp = f->l4;
	__u32 header;

	if (!within(f, tcp, sizeof(*tcp)))
		return REASON_MALFORMED;
	header = tcp->doff * 4;
	if (header < sizeof(*tcp) || header > room)	/* nf_conntrack tcp_error() */
		return REASON_MALFORMED;
	f->key.sport = tcp->source;
	f->key.dport = tcp->dest;
	f->tcp_flags = ((__u8 *)tcp)[13];
	f->tcp_seq = __builtin_bswap32(tcp->seq);
	f->tcp_ack = __builtin_bswap32(tcp->ack_seq);
	f->tcp_end = f->tcp_seq + room - header;
	f->tcp_wnd = wire16(tcp->window);
	if (f->tcp_flags & TCP_SYN)
		return REASON_TCP_SYN;
	if (f->tcp_flags & (TCP_FIN | TCP_RST))
		return REASON_TCP_CLOSE;		/* flow.h judges it */
	if (!(f->tcp_flags & TCP_ACK))
		return REASON_TCP_NO_ACK;
	return REASON_HIT;
}

static __always_inline enum reason parse_udp(struct frame *f, __u32 room)
{
	struct udphdr *udp = f->l4;
	__u32 len;

	if (!within(f, udp, sizeof(*udp)))
		return REASON_MALFORMED;
	len = wire16(udp->len);
	if (len < sizeof(*udp) || len > room)		/* nf_conntrack udp_error() */
		return REASON_MALFORMED;
	f->key.sport = udp->source;
	f->key.dport = udp->dest;
	return REASON_HIT;
}

/* Echo only; everything else speaks about other flows or to routers. The type and
 * code are part of the key: requests and replies are flows of their own. */
static __always_inline enum reason parse_icmp(struct frame *f, __u32 room, __u8 request, __u8 reply)
{
	struct icmp_echo *icmp = f->l4;

	if (room < sizeof(*icmp) || !within(f, icmp, sizeof(*icmp)))
		return REASON_MALFORMED;
	if ((icmp->type != request && icmp->type != reply) || icmp->code)
		return REASON_NOT_ECHO;
	f->key.sport = icmp->id;
	f->key.dport = *(__u16 *)icmp;
	return REASON_HIT;
}

/* RFC 2890 key, or the call id of RFC 2637 (version 1). */
static __always_inline enum reason parse_gre(struct frame *f)
{
	__u16 *gre = f->l4, flags;

	if (!within(f, gre, 8))
		return REASON_MALFORMED;
	flags = wire16(gre[0]);
	if (flags & GRE_VERSION) {
		f->key.sport = gre[3];
	} else if ((flags & (GRE_KEY | GRE_SUM)) == GRE_KEY) {
		f->key.sport = gre[2];
		f->key.dport = gre[3];
	}
	return REASON_HIT;
}

/* `room`: bytes of L4 that the IP header promises. */
static __always_inline enum reason parse_l4(struct frame *f, __u32 room)
{
	f->key.zero = 0;
	switch (f->key.proto) {
	case IPPROTO_TCP:
		return parse_tcp(f, room);
	case IPPROTO_UDP:
		return parse_udp(f, room);
	case IPPROTO_ICMP:
		return f->key.family == 4 ? parse_icmp(f, room, 8, 0) : REASON_NOT_ECHO;
	case IPPROTO_ICMPV6:
		return f->key.family == 6 ? parse_icmp(f, room, 128, 129) : REASON_NOT_ECHO;
	}
	f->key.sport = 0;
	f->key.dport = 0;
	switch (f->key.proto) {
	case IPPROTO_GRE:
		return room < 8 ? REASON_MALFORMED : parse_gre(f);
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
	case IPPROTO_UDPLITE:
	case IPPROTO_ESP:		/* ports, or the SPI */
		if (room < 8 || !within(f, f->l4, 8))
			return REASON_MALFORMED;
		f->key.sport = ((__u16 *)f->l4)[0];
		f->key.dport = ((__u16 *)f->l4)[1];
	}
	return REASON_HIT;
}

static __always_inline enum reason parse_ipv4(struct frame *f)
{
	struct iphdr *ip = f->l3;
	__u32 *w = f->l3;

	if (!within(f, ip, sizeof(*ip)))
		return REASON_MALFORMED;
	if (*(__u8 *)ip != 0x45)
		return ip->version == 4 && ip->ihl > 5 ? REASON_IP_OPTIONS : REASON_MALFORMED;
	f->l3_len = wire16(ip->tot_len);
	if (f->l3_len < sizeof(*ip) || f->l3_len > f->len - ETH_HLEN)
		return REASON_MALFORMED;
	if (csum_fold((__u64)w[0] + w[1] + w[2] + w[3] + w[4]) != 0xffff)
		return REASON_BAD_CHECKSUM;
	if (ip->frag_off & wire16(0xffff & ~DF))	/* reserved bit, MF, offset */
		return REASON_FRAGMENT;
	if (ip->ttl <= 1)
		return REASON_TTL;
	f->tos = ip->tos;
	f->label = 0;
	f->key.family = 4;
	f->key.proto = ip->protocol;
	f->key.saddr = ip->saddr;
	f->key.daddr = ip->daddr;
	f->l4 = ip + 1;
	return parse_l4(f, f->l3_len - sizeof(*ip));
}

/* Headers that stand between IPv6 and L4 (IANA "IPv6 Extension Header Types"). */
static __always_inline int is_extension(__u8 next)
{
	switch (next) {
	case 0: case 43: case 44: case 51: case 59: case 60:
	case 135: case 139: case 140: case 253: case 254:
		return 1;
	}
	return 0;
}

static __always_inline enum reason parse_ipv6(struct frame *f)
{
	struct ipv6hdr *ip = f->l3;
	__u32 *w = f->l3, room;

	if (!within(f, ip, sizeof(*ip)))
		return REASON_MALFORMED;
	if (ip->version != 6)
		return REASON_MALFORMED;
	room = wire16(ip->payload_len);
	f->l3_len = room + sizeof(*ip);
	if (!room || f->l3_len > f->len - ETH_HLEN)	/* 0: a jumbogram, RFC 2675 */
		return REASON_MALFORMED;
	if (ip->nexthdr == 44)
		return REASON_FRAGMENT;
	if (is_extension(ip->nexthdr))
		return REASON_EXTENSION_HEADER;
	if (ip->hop_limit <= 1)
		return REASON_TTL;
	f->label = w[0] & __builtin_bswap32(0x000fffff);
	f->tos = __builtin_bswap32(w[0]) >> 20;
	f->key.family = 6;
	f->key.proto = ip->nexthdr;
	f->key.saddr = w[5];
	f->key.daddr = w[9];
	f->in6.saddr[0] = w[2];
	f->in6.saddr[1] = w[3];
	f->in6.saddr[2] = w[4];
	f->in6.daddr[0] = w[6];
	f->in6.daddr[1] = w[7];
	f->in6.daddr[2] = w[8];
	f->l4 = ip + 1;
	return parse_l4(f, room);
}

/* HIT: an IP packet for this host; f->eth->h_proto says which. */
static __always_inline enum reason parse_ethernet(struct frame *f)
{
	f->eth = f->data;
	if (!within(f, f->eth, ETH_HLEN))
		return REASON_MALFORMED;
	f->l3 = f->eth + 1;
	switch (f->eth->h_proto) {
	case __builtin_bswap16(ETH_P_IP):
	case __builtin_bswap16(ETH_P_IPV6):
		return f->eth->h_dest[0] & 1 ? REASON_NOT_HOST : REASON_HIT;
	case __builtin_bswap16(ETH_P_8021Q):
	case __builtin_bswap16(ETH_P_AD):
		return REASON_VLAN_TAG;
	}
	return REASON_NOT_IP;
}

static __always_inline enum reason parse(struct frame *f)
{
	enum reason reason = parse_ethernet(f);

	if (reason)
		return reason;
	if (f->eth->h_proto == __builtin_bswap16(ETH_P_IP))
		return parse_ipv4(f);
	return parse_ipv6(f);
}

#endif
