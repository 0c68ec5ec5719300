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

static __always_inline struct tally *tally_of(__u64 cpu, enum stage stage, __u32 ifindex)
{
	return row_of(counters, cpu, STAGES * MAX_PORTS, stage * MAX_PORTS + ifindex % MAX_PORTS, sizeof(struct tally));
}

static __always_inline int leave(struct tally *c, enum reason reason, int verdict)
{
	if (reason < REASONS)
		c->packets[reason]++;
	return verdict;
}

#endif
