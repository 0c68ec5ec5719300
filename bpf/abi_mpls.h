/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi_mpls.h: the part of abi.h that is about labels. The tables of RFC 3031 in the closed
 * form that internal/lfib makes of instruction lists, and internal/dataplane writes.
 *
 * Nothing that a packet may be reading is ever written in place, but for single words: an
 * entry that changes gets a new row, and the word that names the row is turned over.
 */
#ifndef SHUNT_ABI_MPLS_H
#define SHUNT_ABI_MPLS_H

#include <linux/types.h>

enum mpls_size {
	LABELS = 1 << 20,
	LABEL_SPACES = 255,
	LABEL_PUSHES = 16,		/* on one packet */
	LABEL_LOOKUPS = 16,		/* for one packet: RFC 7325 2.5 wants a bound */
	LABEL_STEPS = 64,		/* look-ups, choices and pops for one packet */
	LABEL_DEEP = 16,		/* labels that are looked through for what is below them */
	LABEL_MAPS = 256,
	LABEL_CHOICES = 64,
	LABEL_ADJACENCIES = 4096,	/* and none */
	LABEL_PORT_MAC = 16,		/* bit of label_port.key */
};

/* Programs that shunt_mpls() calls, by their row in `programs`. */
enum program {
	PROGRAM_XDP = 0,
	PROGRAMS = 1,
};

/* A label of one space, and the number of its row of counters. */
struct ilm {
	__u32 nhlfe;			/* 0: no such label */
	__u32 segment;
};

/* What an instruction list does last. */
enum nhlfe_end {
	NHLFE_NONE = 0,
	NHLFE_SEND,
	NHLFE_PEEK,			/* look the next label up, in `space` less one; 0: as before */
	NHLFE_DELIVER,			/* the IP packet is the kernel's, or its flow's */
	NHLFE_DROP,
	NHLFE_BY_TC,			/* another NHLFE, by a row of `choices` */
	NHLFE_BY_DSCP,
	NHLFE_BY_HASH,
	NHLFE_BY_LABEL,			/* the same by TC, for a label whose entries are for some TCs */
};

enum nhlfe_flag {
	NHLFE_SWAP = 1,			/* the label popped last is replaced by the first one pushed */
	NHLFE_PIPE = 2,			/* RFC 3443: what is exposed keeps its own TTL and TC */
	NHLFE_SHORT_PIPE = 4,		/* the same, and its TTL is not lowered either */
	NHLFE_SET_TC = 8,		/* of the label on top, nothing being pushed */
	NHLFE_MAP_TC = 16,		/* the same, by its packet's DSCP */
	NHLFE_SET_DSCP = 32,		/* of the IP header that was exposed */
	NHLFE_MAP_DSCP = 64,		/* the same, by the TC */
	NHLFE_UPSTREAM = 128,		/* leaves with an upstream-assigned label on top (RFC 5332) */
};

enum push_flag {
	PUSH_TC = 1,			/* that of `lse`, not that of what is beneath */
	PUSH_TTL = 2,
	PUSH_MAP = 4,			/* TC by the packet's DSCP */
	PUSH_ENTROPY = 8,		/* the label is a hash of the packet (RFC 6790) */
};

enum nhlfe_need {
	NEED_DSCP = 1,			/* a push, or the label on top, goes by the packet's DSCP */
	NEED_HASH = 2,
};

struct push {
	__u32 lse;			/* host order; S by its place */
	__u8 flags, map;
	__u16 zero;
};

struct nhlfe {
	__u8 end, flags;		/* enum nhlfe_end, enum nhlfe_flag */
	__u8 pops, pushes;
	__u8 tc, dscp;			/* to be set, or the row of the map that says it */
	__u8 space, zeros;
	__u32 adjacency;
	__u32 choice;
	__u32 segment;
	__u16 mtu;			/* of IP and labels */
	__u8 needs;			/* enum nhlfe_need */
	__u8 zero;
	__u64 unused;
	struct push push[LABEL_PUSHES];	/* the innermost first */
};

/* An NHLFE that is a plain swap, in the one word that packets need of it: the label, as it stands on
 * the wire, its row of counters and its adjacency, from these bits on. 0: it is no plain swap. */
enum swap {
	SWAP_SEGMENT = 32,
	SWAP_ADJACENCY = 52,
};

/* By TC, by DSCP, or by hash: other NHLFEs, 0: none. */
struct choice {
	__u32 nhlfe[LABEL_CHOICES];
};

/* TC by DSCP, or DSCP by TC. */
struct label_map {
	__u8 to[64];
};

/* Where frames go: a neighbour of a port. Each half is written at once. */
struct adjacency {
	__u8 dmac[6], smac[6];
	__u16 mtu;			/* of the port; 0: nowhere, the neighbour or the port is not there */
	__u16 tx;			/* index into the devmap */
};

/* Which labels come in by a port. Each half is written at once. */
struct label_port {
	__u32 ifindex;			/* of MAX_PORTS ones that share a row one can have labels; 0: none has */
	__u16 upstream;			/* space of upstream-assigned labels, and 1; 0: no groups */
	__u16 zero;
	__u64 key;			/* its space, and from bit LABEL_PORT_MAC on its MAC, as it lies in memory */
};

/* RFC 3813, per CPU. */
struct segment {
	__u64 packets, octets;		/* of labels and payload */
};

/* A row is one of a label's and one of an NHLFE's, which have nothing to do with one another. */
struct segment_pair {
	struct segment in, out;
};

/* Of an in-segment: what is none of `packets` of any out-segment. */
struct loss {
	__u64 errors, discards;
};

_Static_assert(sizeof(struct ilm) == 8, "ilm");
_Static_assert(sizeof(struct nhlfe) == 160, "nhlfe");
_Static_assert(sizeof(struct adjacency) == 16, "adjacency");
_Static_assert(sizeof(struct label_port) == 16, "label_port");

#endif
