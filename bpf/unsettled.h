/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * unsettled.h: which TCP connections the daemon must settle in conntrack once they are quiet
 * (docs/decisions/0012-conntrack-timers.md). No hit comes here.
 */
#ifndef SHUNT_UNSETTLED_H
#define SHUNT_UNSETTLED_H

#include "flow.h"

/* The kernel gets a packet of this TCP flow, which was repeated before. A locked instruction, after `seen` is written:
 * the daemon clears the bit first and reads the slot then, so it sees either. The place follows from the address, so
 * that no hit must keep it; shifted out and back, the verifier knows that it is in the table. */
static __always_inline void slot_unsettled(const struct slot *s)
{
	void *table = (void *)flows;
	__u64 *bits = unsettled;
	__u32 n, bucket;

	forget(table);		/* that it was shorter when it was compiled */
	forget(bits);
	n = (__u64)((void *)s - table) / SLOT_SIZE;
	bucket = LOADED(n / WAYS, <<, BUCKET_SHIFT);
	n = LOADED(bucket, >>, BUCKET_SHIFT) * WAYS + n % WAYS;
	__sync_fetch_and_or(&bits[n / 64], 1ull << n % 64);
}

/* In a pause every packet is the kernel's; what conntrack's timer depends on goes on. */
static __always_inline void flow_watch(struct slot *s, const struct frame *f)
{
	if (f->proto != IPPROTO_TCP)
		return;
	flow_evidence_slow(s, f);
	s->seen = now_jiffies();
	if (s->flags & SLOT_CT)
		slot_unsettled(s);
}

#endif
