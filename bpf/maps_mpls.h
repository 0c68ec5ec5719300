/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * maps_mpls.h: the tables of label switching, made when the first port gets a label space. The
 * daemon writes all of them but the counters, through memory that it shares; XDP reads. Row 0
 * of each is nothing. All but the label spaces over 0 are global variables, whose rows are found by
 * arithmetic; each has a power of two of them, which the daemon sets at load time.
 */
#ifndef SHUNT_MAPS_MPLS_H
#define SHUNT_MAPS_MPLS_H

#include "maps.h"
#include "abi_mpls.h"

/* Label space 0, which RFC 3031 3.14 calls per platform, by label. */
struct ilm platform[2] SEC(".data.platform");

/* The others, by space, then by label. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, LABEL_SPACES);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_MMAPABLE);
		__uint(max_entries, LABELS);
		__type(key, __u32);
		__type(value, struct ilm);
	});
} label_spaces SEC(".maps");

/* FTN: the NHLFE of IP packets, by the longest prefix of their destination. */
PREFIXES(prefix4) ftns4 SEC(".maps");
PREFIXES(prefix6) ftns6 SEC(".maps");

/* The row of `nhlfes` that each NHLFE is in now; and if it is a plain swap, all of it: those
 * who read that need no row. */
__u32 nhlfe_rows[2] SEC(".data.nhlfe_rows");
__u64 swaps[2] SEC(".data.swaps");
struct nhlfe nhlfes[2] SEC(".data.nhlfes");
struct choice choices[2] SEC(".data.choices");
struct adjacency adjacencies[LABEL_ADJACENCIES] SEC(".data.adjacencies");
struct label_map label_maps[LABEL_MAPS] SEC(".data.label_maps");

/* By ifindex % MAX_PORTS. */
struct label_port label_ports[MAX_PORTS] SEC(".data.label_ports");

/* A row for each label, and for each NHLFE that sends; each CPU has all rows. What most
 * packets count in is together. */
struct segment_pair segments[2] SEC(".data.segments");
struct loss losses[2] SEC(".data.losses");

/* Where what has no labels goes on. The daemon writes. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

static __always_inline void *row_at(void *table, __u64 n, __u32 size)
{
	forget(table);		/* how many rows it had when it was compiled */
	return table + n * size;
}

/* All rows of a CPU, and one of them. */
static __always_inline struct segment_pair *segments_of(__u64 cpu)
{
	return row_at(segments, LOADED(cpu, *, SEGMENTS_SIZE), 1);
}

static __always_inline struct segment_pair *segment_at(struct segment_pair *rows, __u64 n)
{
	return row_at(rows, LOADED(n, &, SEGMENTS), sizeof(struct segment_pair));
}

static __always_inline struct loss *loss_at(__u64 cpu, __u64 n)
{
	return row_at(row_at(losses, LOADED(cpu, *, LOSSES_SIZE), 1), LOADED(n, &, SEGMENTS), sizeof(struct loss));
}

#endif
