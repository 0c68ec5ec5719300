/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * meter.h: token buckets on the punt path. A flood of packets that only the kernel can deal
 * with (TTL 1, fragments, options, ...) takes a router's CPU whether shunt is there or not;
 * where the operator gave such a reason a rate, what is over it is dropped here, before the
 * kernel has spent anything on it.
 *
 * What is protected is a CPU's time, so each CPU has buckets of its own, one per reason, all of
 * the same rate: nothing is shared and nothing is locked. They know no port and no source: under a
 * flood the honest packets of that reason are dropped too, of no other.
 *
 * Called for packets that leave for what they are, or for want of a slot; never for a hit,
 * nor for a packet of a flow that is counted, learned or proved. Off, it costs them a bit to look at.
 */
#ifndef SHUNT_METER_H
#define SHUNT_METER_H

#include "maps.h"
#include "frame.h"

/* The generic cell rate algorithm (ITU-T I.371): a bucket is the time at which it will be
 * full again. A function of its own: its registers are not the caller's; and not static: the verifier
 * looks at it once. */
__noinline int meter_spent(__u32 reason)
{
	const volatile struct rate *r = &ctl.rates[reason & (RATES - 1)];
	__u32 key = reason;
	struct meter *m = bpf_map_lookup_elem(&meters, &key);
	__u64 now = bpf_ktime_get_ns();

	if (!m)
		return 0;
	if (m->full > now + r->ahead) {
		m->dropped++;
		return 1;
	}
	m->full = (m->full > now ? m->full : now) + r->every;
	return 0;
}

static __always_inline int is_policed(enum reason reason)
{
	return rarely(ctl.policed >> reason & 1) && (__u32)reason < RATES;
}

/* Is the packet over the rate of its reason? Then it is to be dropped, as REASON_POLICED. */
static __always_inline int over_rate(enum reason reason)
{
	return is_policed(reason) && meter_spent(reason);
}

#endif
