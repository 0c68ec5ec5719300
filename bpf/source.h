/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * source.h: how many slots of the flow table each source holds, so that one of them cannot
 * fill it for the others. flow.h calls it where a slot gets a key, and nowhere else: neither
 * a hit nor any other packet of a flow that has a slot comes here.
 *
 * A source is a port with an IPv4 address, or with the /64 of an IPv6 address: within its
 * own /64 a host may take any address that it likes (RFC 4291 2.5.1, RFC 8981).
 *
 * The count is exact, so there is nothing to decay and nothing leaks. A slot is counted for
 * the source in its key from the moment it gets the key to the moment it loses it, both
 * with the slot locked: `held` is the number of slots whose keys have a source of that number.
 * What is counted and no longer in use, since its flow has been idle for a second and nothing
 * tells of that, flow_sweep() finds when a source comes to its limit.
 *
 * Limits: sources with the same number share the limit, one pair in SOURCES. The number is
 * keyed by the secret of the flow hash, so nobody can choose whom to share it with. Who can
 * send with any source address has as many limits as addresses.
 */
#ifndef SHUNT_SOURCE_H
#define SHUNT_SOURCE_H

#include "maps.h"
#include "frame.h"

/* Multiply-shift, as in flow_hash(); the uppermost bits count. */
static __always_inline __u32 source_of(const struct flow_key *k, const struct flow_words *w)
{
	__u32 high = k->saddr, low = 0;
	__u64 h = port_of(k) * ctl.secret[4];

	if (family_of(k) == 6) {
		high = w->saddr[0];
		low = w->saddr[1];
	}
	h += (high + ctl.secret[2]) * (low + ctl.secret[3]);
	return h >> (64 - SOURCE_BITS);
}

/* The writer of a slot gives it another key. No ifindex is 0, so a key without one is none. */
static __always_inline void source_count(const struct flow_key *k, const struct flow_words *w, __s32 n)
{
	if (port_of(k))
		__sync_fetch_and_add(&sources.held[source_of(k, w)], n);
}

/* Is there no room for another flow of this source? CPUs that ask at the same time may each
 * let one in. */
static __always_inline int source_full(const struct flow_key *k, const struct flow_words *w)
{
	__u32 most = ctl.source_flows;

	return most && OUR(sources.held[source_of(k, w)]) >= (__s32)most;
}

#endif
