/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * parse.h: Ethernet, IPv4, IPv6 and L4 into a frame, or the reason why the kernel
 * must have it. Everything the kernel would drop, answer or reassemble is a reason
 * (RFC 1812 5.2.2 and 5.3, RFC 8200 3; ip_rcv_core(), ip6_rcv_core(), ip_forward()
 * and the protocols' nf_conntrack error checks). Writes nothing.
 *
 * REASON_HIT (0) means: a packet that may be repeated if its flow is armed. The parse_
 * functions judge and take lengths alone, the key_ functions take the rest: whatever is
 * taken between two checks would be moved about at each of them, since their ways out
 * meet in one place.
 */
#ifndef SHUNT_PARSE_H
#define SHUNT_PARSE_H

#include "frame.h"
#include "csum.h"

enum { ETH_P_AD = 0x88a8, DF = 0x4000, GRE_KEY = 0x2000, GRE_SUM = 0x8000, GRE_VERSION = 7 };

static __always_inline __u16 wire16(__u16 host) { return __builtin_bswap16(host); }

/* struct ethhdr is packed: its h_proto would be read in two bytes */
static __always_inline __u16 ether_type(const struct frame *f) { return ((__u16 *)f->data)[6]; }

static __always_inline enum reason parse_tcp(const struct frame *f)
{
	struct tcphdr *tcp = f->l4;
	__u32 header;
	__u8 flags;

	if (!within(f, tcp, sizeof(*tcp)))
		return REASON_MALFORMED;
	header = tcp->doff * 4;
	if (header < sizeof(*tcp) || header > f->l4_len)	/* nf_conntrack tcp_error() */
		return REASON_MALFORMED;
	flags = ((__u8 *)tcp)[13];
	if (rarely((flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK)) {
		if (flags & TCP_SYN)
			return REASON_TCP_SYN;
		if (flags & (TCP_FIN | TCP_RST))
			return REASON_TCP_CLOSE;		/* flow.h judges it */
		return REASON_TCP_NO_ACK;
	}
	return REASON_HIT;
}

static __always_inline enum reason parse_udp(const struct frame *f)
{
	struct udphdr *udp = f->l4;
	__u32 len = wire16(udp->len);

	if (rarely(len != f->l4_len) && (len < sizeof(*udp) || len > f->l4_len))	/* nf_conntrack udp_error() */
		return REASON_MALFORMED;
	return REASON_HIT;
}

/* Echo only; everything else speaks about other flows or to routers. The type and
 * code are part of the key: requests and replies are flows of their own. */
static __always_inline enum reason parse_icmp(const struct frame *f, __u8 request, __u8 reply)
{
	struct icmp_echo *icmp = f->l4;

	if ((icmp->type != request && icmp->type != reply) || icmp->code)
		return REASON_NOT_ECHO;
	return REASON_HIT;
}

/* RFC 3828 3.1, udplite_error(): how much the checksum covers (0: all), and that there is one. */
static __always_inline enum reason parse_udplite(const struct frame *f)
{
	struct udphdr *udp = f->l4;
	__u32 covered = wire16(udp->len);

	if (!udp->check || (covered && covered < sizeof(*udp)) || covered > f->l4_len)
		return REASON_MALFORMED;
	return REASON_HIT;
}

/* Version 1 has no key in its place but a call id (RFC 2637). Conntrack knows it if it carries
 * PPP, by that id, else it is INVALID (gre_pkt_to_tuple()); NAT drops later ones (gre_manip_pkt()). */
static __always_inline enum reason parse_gre(const struct frame *f)
{
	return *(__u16 *)f->l4 & wire16(GRE_VERSION) ? REASON_MALFORMED : REASON_HIT;
}

/* RFC 2890 key. */
static __always_inline __u32 gre_ports(const struct frame *f)
{
	__u16 *gre = f->l4, flags = wire16(gre[0]);

	return (flags & (GRE_KEY | GRE_SUM)) == GRE_KEY ? ((word *)gre)[1] : 0;
}

static __always_inline enum reason parse_l4(const struct frame *f, const __u8 family)
{
	switch (f->proto) {
	case IPPROTO_UDP:
		return parse_udp(f);
	case IPPROTO_TCP:
		return parse_tcp(f);
	case IPPROTO_ICMP:
		return family == 4 ? parse_icmp(f, 8, 0) : REASON_NOT_ECHO;
	case IPPROTO_ICMPV6:
		return family == 6 ? parse_icmp(f, 128, 129) : REASON_NOT_ECHO;
	case IPPROTO_GRE:
		return parse_gre(f);
	case IPPROTO_UDPLITE:
		return parse_udplite(f);
	}
	return REASON_HIT;
}

/* What tells flows of a protocol apart: ports, or the SPI. */
static __always_inline __u32 key_ports(const struct frame *f)
{
	const struct icmp_echo *icmp = f->l4;

	switch (f->proto) {
	case IPPROTO_UDP:
	case IPPROTO_TCP:
		return *(word *)f->l4;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return icmp->id | (__u32)*(__u16 *)icmp << 16;
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
	case IPPROTO_UDPLITE:
	case IPPROTO_ESP:
		return *(word *)f->l4;
	case IPPROTO_GRE:
		return gre_ports(f);
	}
	return 0;
}

static __always_inline void key_rest(struct frame *f)
{
	*rest_of(&f->key) = key_ports(f) | (__u64)kind_of(f->port, f->family, f->proto) << 32;
}

/* In an IPv4 header's second word: reserved bit, MF, offset. */
enum { NOT_ALONE = (int)0xffbf0000 };

/* Which of the checks of parse_ipv4() it was. */
static __always_inline enum reason why_not_ipv4(const struct frame *f)
{
	struct iphdr *ip = f->l3;

	if (ip->version != 4 || ip->ihl < 5)
		return REASON_MALFORMED;
	if (ip->ihl > 5)
		return REASON_IP_OPTIONS;
	if (f->l3_len < sizeof(*ip) || trailer_of(f) > f->len)
		return REASON_MALFORMED;
	if (f->l4_len < 8)
		return REASON_RUNT;
	if (ip->frag_off & wire16(0xffff & ~DF))	/* reserved bit, MF, offset */
		return REASON_FRAGMENT;
	return ip->ttl <= 1 ? REASON_TTL : REASON_BAD_CHECKSUM;
}

static __always_inline enum reason parse_ipv4(struct frame *f)
{
	const __u32 room = ETH_HLEN + sizeof(struct iphdr) + 8;	/* frame_fits() has seen to it */
	struct iphdr *ip = f->l3;
	word *w = f->l3;

	f->l3_len = (__u16)__builtin_bswap32(w[0]);
	f->l4_len = f->l3_len - sizeof(struct iphdr);
	if (rarely(OUR(*(__u8 *)w) != 0x45 || (rarely(trailer_of(f)) && trailer_of(f) > f->len - room) ||
		   !csum_valid((__u64)w[0] + w[1] + w[2] + w[3] + w[4]) ||
		   w[1] & NOT_ALONE || OUR(ip->ttl) <= 1))
		return why_not_ipv4(f);
	return parse_l4(f, 4);
}

static __always_inline void key_ipv4(struct frame *f)
{
	word *w = f->l3;

	*addresses_of(&f->key) = *(dword *)(w + 3);
	key_rest(f);
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

	f->l4_len = wire16(ip->payload_len);
	f->l3_len = f->l4_len + sizeof(*ip);
	if (ip->version != 6)
		return REASON_MALFORMED;
	if (!f->l4_len || trailer_of(f) > f->len)	/* 0: a jumbogram, RFC 2675 */
		return REASON_MALFORMED;
	if (f->l4_len < 8)
		return REASON_RUNT;
	if (ip->nexthdr == 44)
		return REASON_FRAGMENT;
	if (is_extension(ip->nexthdr))
		return REASON_EXTENSION_HEADER;
	if (ip->hop_limit <= 1)
		return REASON_TTL;
	return parse_l4(f, 6);
}

static __always_inline void key_ipv6(struct frame *f)
{
	word *w = f->l3;

	f->key.saddr = w[5];
	f->key.daddr = w[9];
	f->in6.saddr[0] = w[2];
	f->in6.saddr[1] = w[3];
	f->in6.saddr[2] = w[4];
	f->in6.daddr[0] = w[6];
	f->in6.daddr[1] = w[7];
	f->in6.daddr[2] = w[8];
	key_rest(f);
}

/* Not IP: what else? */
static __always_inline enum reason why_not_ip(__u32 type)
{
	if (type == wire16(ETH_P_MPLS_UC) || type == wire16(ETH_P_MPLS_MC))
		return REASON_MPLS_OFF;		/* where a port has a label space it does not come this far */
	return type == wire16(ETH_P_8021Q) || type == wire16(ETH_P_AD) ? REASON_VLAN_TAG : REASON_NOT_IP;
}

static __always_inline int is_group(const struct frame *f)
{
	return *(__u8 *)f->data & 1;
}

/* What the Ethernet header says, and the family with it: 4 or 6. */
static __always_inline enum reason parse_ethernet(struct frame *f)
{
	__u32 type;

	if (!within(f, f->data, ETH_HLEN))
		return REASON_MALFORMED;
	type = ether_type(f);
	if (type != wire16(ETH_P_IP) && type != wire16(ETH_P_IPV6))
		return why_not_ip(type);
	f->family = type == wire16(ETH_P_IP) ? 4 : 6;
	return is_group(f) ? REASON_NOT_HOST : REASON_HIT;
}

/* The headers behind it. */
static __always_inline enum reason parse(struct frame *f, const __u8 family)
{
	if (!frame_fits(f, family))
		return REASON_RUNT;
	frame_point(f, family);
	f->proto = protocol_of(f);
	return family == 4 ? parse_ipv4(f) : parse_ipv6(f);
}

static __always_inline void take_key(struct frame *f)
{
	if (f->family == 4)
		key_ipv4(f);
	else
		key_ipv6(f);
}

#endif
