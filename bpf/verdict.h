/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * verdict.h: the only way out of the programs. Every packet leaves with a reason,
 * counted once per stage, per port and per CPU, so the sums are exact.
 */
#ifndef SHUNT_VERDICT_H
#define SHUNT_VERDICT_H

#include "maps.h"

/* linux/bpf.h before 6.6 does not have them */
enum { NEXT = -1 /* TCX_NEXT */, DROP = 2 /* TCX_DROP */ };

/* A row serves one ifindex in MAX_PORTS; two ports that share one share their figures. */
static __always_inline struct tally *tally_of(enum stage stage, __u32 ifindex)
{
	__u32 row = stage * MAX_PORTS + ifindex % MAX_PORTS;

	return bpf_map_lookup_elem(&counters, &row);
}

static __always_inline int leave(struct tally *c, enum reason reason, int verdict)
{
	if (c && reason < REASONS)
		c->packets[reason]++;
	return verdict;
}

#endif
