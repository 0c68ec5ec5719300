/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * frame.h: one packet under inspection. parse.h fills it, flow.h finds its entry,
 * edit.h changes the bytes it points to. All pointers die with any helper that moves
 * packet data. No kernel types: it compiles natively.
 */
#ifndef SHUNT_FRAME_H
#define SHUNT_FRAME_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/in.h>
#include "abi.h"

/* Keeps the way of a hit in one straight line of code. */
#define rarely(x) __builtin_expect(!!(x), 0)
#define mostly(x) __builtin_expect(!!(x), 1)

/* What was known of x is forgotten: comparisons before and behind stay apart, where they
 * would become one search through all the values. */
#define forget(x) asm volatile("" : "+r"(x))

/* x, but what is found out of it is not known of x. */
#define another(x) ({ typeof(x) another_; asm("" : "=r"(another_) : "0"(x)); another_; })

/* Read here and now, and as wide as it is. */
#define OUR(x) (*(volatile typeof(x) *)&(x))

/* What is behind it is not read before it: it would be held in registers that are wanted for
 * what is before. */
#define not_yet() asm volatile("" ::: "memory")

/* Two branches that begin alike are not to be joined there. */
#define apart(n) asm volatile("" : : "i"(n))

enum tcp_flag { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16, TCP_URG = 32 };

/* RFC 792, RFC 4443 4.1 (linux/icmp.h drags in socket headers) */
struct icmp_echo {
	__u8 type, code;
	__u16 check, id, seq;
};

/* Two or four fields of a header or a slot at once. */
typedef __u32 __attribute__((may_alias)) word;
typedef __u64 __attribute__((may_alias)) dword;

/* The two numbers of a key. */
static __always_inline dword *addresses_of(const struct flow_key *k) { return (dword *)&k->saddr; }
static __always_inline dword *rest_of(const struct flow_key *k) { return (dword *)&k->sport; }

static __always_inline __u32 kind_of(__u32 ifindex, __u8 family, __u8 proto)
{
	return ifindex << KIND_PORT | (family == 6 ? KIND_IPV6 : 0) | proto;
}

static __always_inline __u32 port_of(const struct flow_key *k) { return k->kind >> KIND_PORT; }
static __always_inline __u8 family_of(const struct flow_key *k) { return k->kind & KIND_IPV6 ? 6 : 4; }
static __always_inline __u8 proto_of(const struct flow_key *k) { return k->kind; }

struct frame {
	void *data, *end;	/* linear part */
	__u32 len;		/* whole frame, from the Ethernet header on */
	__u32 port;		/* ifindex */
	__u64 family;		/* 4 or 6; the verifier knows what is in whole stack words */

	void *l3, *l4;
	__u64 l3_len;		/* these two as the IP header says; wide, as it is counted */
	__u32 l4_len;
	__u32 proto;
	struct flow_key key;
	struct flow_words in6;
};

/* TOS or traffic class, ECN included. Like the label it is read where it is needed: the
 * header is at hand, a register is not. */
static __always_inline __u8 tos_of(const struct frame *f)
{
	const word *w = f->l3;

	return f->family == 4 ? w[0] >> 8 : __builtin_bswap32(w[0]) >> 20;
}

/* IPv6 flow label, wire order; IPv4: 0. */
static __always_inline __u32 label_of(const struct frame *f)
{
	return f->family == 4 ? 0 : *(const word *)f->l3 & __builtin_bswap32(0x000fffff);
}

/* The only bounds check: `n` bytes at `p` are within the linear part. */
static __always_inline int within(const struct frame *f, const void *p, __u32 n)
{
	return p + n <= f->end;
}

static __always_inline __u32 l4_at(const __u8 family)
{
	return ETH_HLEN + (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* Are an IP header and 8 bytes behind it there? That is all that flows are told apart by,
 * so whatever is shorter is left to the kernel. */
static __always_inline int frame_fits(const struct frame *f, const __u8 family)
{
	return within(f, f->data, l4_at(family) + 8);
}

static __always_inline void frame_point(struct frame *f, const __u8 family)
{
	f->family = family;
	f->l3 = f->data + ETH_HLEN;
	f->l4 = f->data + l4_at(family);
}

/* Bytes behind the packet; under 0 they are over `len`. */
static __always_inline __u32 trailer_of(const struct frame *f)
{
	return f->len - (__u32)ETH_HLEN - f->l3_len;
}

static __always_inline __u8 protocol_of(const struct frame *f)
{
	return f->family == 4 ? ((struct iphdr *)f->l3)->protocol : ((struct ipv6hdr *)f->l3)->nexthdr;
}

/* Where a protocol keeps its checksum, from the start of L4; 0: none that NAT touches. */
static __always_inline __u32 l4_sum_at(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP: return 16;
	case IPPROTO_UDP: return 6;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6: return 2;
	}
	return 0;
}

#endif
