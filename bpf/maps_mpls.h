/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * maps_mpls.h: the tables of label switching, made when the first port gets a label space. The
 * daemon writes all of them but the counters, through memory that it shares; XDP reads. Row 0
 * of each is nothing. All but the label spaces are global variables, whose rows are found by
 * arithmetic; each has a power of two of them, which the daemon sets at load time.
 */
#ifndef SHUNT_MAPS_MPLS_H
#define SHUNT_MAPS_MPLS_H

#include "maps.h"
#include "abi_mpls.h"

/* By space, then by label. */
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
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LSPS);
	__type(key, struct prefix4);
	__type(value, __u32);
} ftns4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LSPS);
	__type(key, struct prefix6);
	__type(value, __u32);
} ftns6 SEC(".maps");

/* The row of `nhlfes` that each NHLFE is in now. */
__u32 nhlfe_rows[2] SEC(".data.nhlfe_rows");
struct nhlfe nhlfes[2] SEC(".data.nhlfes");
struct choice choices[2] SEC(".data.choices");
struct adjacency adjacencies[2] SEC(".data.adjacencies");
struct label_map label_maps[LABEL_MAPS] SEC(".data.label_maps");

/* By ifindex % MAX_PORTS. */
struct label_port label_ports[MAX_PORTS] SEC(".data.label_ports");

/* A row for each label, and for each NHLFE that sends; each CPU has all rows. */
struct segment in_segments[2] SEC(".data.in_segments");
struct segment out_segments[2] SEC(".data.out_segments");

/* Where what has no labels goes on. The daemon writes. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

/* Rows less one: how many NHLFEs, and how many of the others. */
const volatile __u32 nhlfe_mask = 1, row_mask = 1, choice_mask = 1, adjacency_mask = 1, segment_mask = 1;

static __always_inline void *row_at(void *table, __u32 n, __u32 size)
{
	forget(table);		/* how many rows it had when it was compiled */
	return table + (__u64)n * size;
}

static __always_inline struct segment *segment_of(void *table, __u32 cpu, __u32 n)
{
	return row_at(table, cpu * (segment_mask + 1) + (n & segment_mask), sizeof(struct segment));
}

#endif
