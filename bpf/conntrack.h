/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* conntrack.h: fields of conntrack's entries. Called by learn.h. */
#ifndef SHUNT_CONNTRACK_H
#define SHUNT_CONNTRACK_H

#include "maps.h"

/* The zone that conntrack finds a direction's tuple in (nf_ct_zone_id()): ct_zone may be set for one direction alone. */
static __always_inline __u16 ct_zone(struct nf_conn *ct, int dir)
{
	if (!bpf_core_field_exists(ct->zone.id) || !(BPF_CORE_READ(ct, zone.dir) & 1 << dir))
		return 0;
	return BPF_CORE_READ(ct, zone.id);
}

#endif
