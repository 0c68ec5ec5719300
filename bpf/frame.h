/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * frame.h: one packet under inspection. parse.h fills it (and does not clear it first:
 * fields are set where they mean something), flow.h finds its entry,
 * edit.h changes the bytes it points to. Headers are pointed to, not copied, so all
 * pointers die with any helper that moves packet data. No kernel types: native
 * fuzzing compiles this file too.
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

enum tcp_flag { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };

/* RFC 792, RFC 4443 4.1 (linux/icmp.h drags in socket headers) */
struct icmp_echo {
	__u8 type, code;
	__u16 check, id, seq;
};

struct frame {
	void *data, *end;	/* linear part */
	__u32 len;		/* whole frame, from the Ethernet header on */

	struct ethhdr *eth;
	void *l3, *l4;
	__u32 l3_len;		/* IP packet as its header says; what is behind it is a trailer */
	struct flow_key key;
	struct flow_words in6;
	__u32 label;		/* IPv6 flow label, wire order */
	__u8 tos;		/* TOS or traffic class, ECN included */
	__u8 tcp_flags;
	__u32 tcp_seq, tcp_ack;
	__u32 tcp_end;		/* sequence number after the payload */
	__u16 tcp_wnd;
};

/* The only bounds check: `n` bytes at `p` are within the linear part. */
static __always_inline int within(const struct frame *f, const void *p, __u32 n)
{
	return p + n <= f->end;
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
