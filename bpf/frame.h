/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * frame.h: one packet under inspection. parse.h fills it, flow.h finds its entry,
 * edit.h changes the bytes it points to. All pointers die with any helper that moves
 * packet data. No kernel types: native fuzzing compiles this file too.
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

enum tcp_flag { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };

/* RFC 792, RFC 4443 4.1 (linux/icmp.h drags in socket headers) */
struct icmp_echo {
	__u8 type, code;
	__u16 check, id, seq;
};

/* Two or four fields of a header or a slot at once. */
typedef __u32 __attribute__((may_alias)) word;
typedef __u64 __attribute__((may_alias)) dword;

static __always_inline dword *addresses_of(const struct flow_key *k) { return (dword *)&k->saddr; }
static __always_inline word *ports_of(const struct flow_key *k) { return (word *)&k->sport; }

struct frame {
	void *data, *end;	/* linear part */
	__u32 len;		/* whole frame, from the Ethernet header on */

	struct ethhdr *eth;
	void *l3, *l4;
	__u32 l3_len, l4_len;	/* as the IP header says; what is behind is a trailer */
	struct flow_key key;
	struct flow_words in6;
	__u32 label;		/* IPv6 flow label, wire order */
	__u8 tos;		/* TOS or traffic class, ECN included */
};

/* The only bounds check: `n` bytes at `p` are within the linear part. */
static __always_inline int within(const struct frame *f, const void *p, __u32 n)
{
	return p + n <= f->end;
}

/* Sets l3 and l4: are an IP header and 8 bytes behind it there? That is all that flows
 * are told apart by, so whatever is shorter is left to the kernel. */
static __always_inline int frame_headers(struct frame *f, __u8 family)
{
	f->eth = f->data;
	f->l3 = f->data + ETH_HLEN;
	f->l4 = f->l3 + (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	return within(f, f->l4, 8);
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
