/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * maps.h: all maps, each with its writers and readers. All of them are pinned, so
 * the data path goes on without the daemon, and a new daemon finds it as it was.
 * The sizes of `flows`, `armed`, `unsettled`, `sightings`, `counters`, `notebooks` and `transmits` are set at
 * load time (internal/dataplane); here they are short, because each object holds their zeros.
 */
#ifndef SHUNT_MAPS_H
#define SHUNT_MAPS_H

#include "frame.h"
#include "kernel.h"

/* n, by an operation with a number of enum loaded: in 64 bits, to which the number's 32 are extended by their
 * sign. */
#ifdef __bpf__
#define LOADED(n, op, number) ({ __u64 n_ = (n); asm("%0 " #op "= %1" : "+r"(n_) : "i"(number)); n_; })
#else
#define LOADED(n, op, number) ((__u64)(n) op native_loaded(number))
#endif

/* The daemon writes; every program reads. (XDP alone sets no_marks.) */
volatile struct control ctl SEC(".data.control");

/* The flow table: buckets of two slots, each key has two buckets (two choices).
 * TC ingress claims slots, TC egress learns into them, any stage closes them; XDP
 * and TC ingress repeat from them; the daemon reads, and puts entries out of use
 * (Plane.Forget). One global variable (a map with one value), so that a look-up is
 * address arithmetic and no call, for which a program would have to put aside what it
 * holds in registers; the memory is bounded and allocated once. The verifier takes
 * offsets below 512 MB (BPF_MAX_VAR_OFF). */
struct bucket flows[BUCKETS] SEC(".data.flows");

/* One bit per slot: may be armed. TC egress sets them; the daemon, which goes through them when
 * it must put entries out of use, clears those that are armed no longer. */
__u64 armed[1] SEC(".data.armed");

/* One bit per slot: the kernel saw a TCP packet of a flow that was repeated before, so conntrack's timer may be due for a correction
 * once the flow is quiet. TC egress and both ingress programs set them; the daemon clears them (Plane.Unsettled). */
__u64 unsettled[1] SEC(".data.unsettled");

/* TC ingress writes, TC egress reads, on the same CPU. For each CPU SIGHTINGS rows. */
struct sighting sightings[1] SEC(".data.sightings");

/* leave() writes; the daemon reads, and health.bpf.c on the same CPU. For each CPU
 * STAGES * MAX_PORTS rows. One global variable for the same reason. */
struct tally counters[1] SEC(".data.counters");

/* A helper, for all that the compiler knows: so it is asked once, before anything is in the
 * registers that a call takes. */
static __always_inline __u64 this_cpu(void) { return LOADED(bpf_get_smp_processor_id(), &, CPUS); }

/* Row n of this CPU's `rows`. */
static __always_inline void *row_of(void *table, __u64 cpu, __u32 rows, __u32 n, __u32 size)
{
	forget(table);		/* that it was for one CPU when it was compiled */
	return table + (cpu * rows + n) * size;
}

/* sample_keep() and flow_sweep() write; the daemon reads the samples. For each CPU one. */
struct notebook notebooks[1] SEC(".data.notebooks");

/* By ifindex. The daemon writes, and while it is dead the tracepoint programs; TC egress reads when it learns. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* Ports that take redirected frames, by port.tx, and the imposer. The daemon writes; XDP redirects. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS + 1);
	__type(key, __u32);
	__type(value, __u32);
} tx SEC(".maps");

/* A number for each of some prefixes; the longest that fits is found. */
#define PREFIXES(prefix) struct {			\
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);		\
	__uint(map_flags, BPF_F_NO_PREALLOC);		\
	__uint(max_entries, LSPS);			\
	__type(key, struct prefix);			\
	__type(value, __u32);				\
}

/* Prefixes of packets that get labels (lsp.h), each with the longest IP packet that fits with
 * them, whatever its NHLFE chooses; 0: these get none. The daemon writes, TC egress reads. The
 * tables that the labels are from (maps_mpls.h) go with their program, these stay. */
PREFIXES(prefix4) lsps4 SEC(".maps");
PREFIXES(prefix6) lsps6 SEC(".maps");

/* The tracepoint programs write; XDP (at a lease's end, it asks by writing, too) and the daemon read. For each
 * CPU MAX_PORTS rows. */
struct transmit transmits[1] SEC(".data.transmits");

/* One row serves one ifindex in MAX_PORTS; two ports that share one share their figures. */
static __always_inline struct transmit *transmit_of(__u64 cpu, __u32 ifindex)
{
	return row_of(transmits, cpu, MAX_PORTS, ifindex % MAX_PORTS, sizeof(struct transmit));
}

/* Who claims a slot or empties one writes; nobody else reads. */
struct sources sources SEC(".data.sources");

/* By reason. XDP and TC ingress write, each on its CPU; the daemon reads what was dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RATES);
	__type(key, __u32);
	__type(value, struct meter);
} meters SEC(".maps");

/* All stages write, the daemon reads. A full ring loses requests: be-liberal is asked
 * for again; a reset connection keeps its state until conntrack's timeout for one.
 * Differences (differ.h) get no more than half of it. */
enum { EVENTS = 64 * 1024 };	/* bytes */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS);
} events SEC(".maps");

#endif
