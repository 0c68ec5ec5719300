/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * others.h: what other people put between a port and the stack. A hit bypasses what stands at its way in, and in
 * XDP also what stands at its way out. The daemon reads all of it and is told of changes; without one nobody
 * is, so flows that pass such things go back to the kernel at the end of their lease.
 */
#ifndef SHUNT_OTHERS_H
#define SHUNT_OTHERS_H

#include "flow.h"
#include "kernel.h"

/* The device's tcx entry holds shunt's program, others' programs, and the filters of clsact (tcx_run(), tc_run()). */
static __always_inline int others_at_tcx(struct bpf_mprog_entry *entry)
{
	struct bpf_mprog_bundle *bundle;
	struct tcx_entry *tcx;

	if (!entry)
		return 0;
	bundle = BPF_CORE_READ(entry, parent);
	tcx = (void *)bundle - bpf_core_field_offset(struct tcx_entry, bundle);
	return BPF_CORE_READ(bundle, count) > 1 || BPF_CORE_READ(tcx, miniq);
}

/* At ingress; flowtables are hooks, too (nf_flow_table_offload_setup()). */
static __always_inline int unwatched_in(struct sk_buff *k)
{
	if (mostly(daemon_lives()))
		return 0;
	if (bpf_core_field_exists(struct net_device, nf_hooks_ingress) && BPF_CORE_READ(k, dev, nf_hooks_ingress))
		return 1;
	return others_at_tcx(BPF_CORE_READ(k, dev, tcx_ingress));
}

/* At egress; a qdisc that an administrator set has a major number (qdisc_alloc_handle()). */
static __always_inline int unwatched_out(struct sk_buff *k)
{
	if (mostly(daemon_lives()))
		return 0;
	if (bpf_core_field_exists(struct net_device, nf_hooks_egress) && BPF_CORE_READ(k, dev, nf_hooks_egress))
		return 1;
	return BPF_CORE_READ(k, dev, qdisc, handle) >> 16 || others_at_tcx(BPF_CORE_READ(k, dev, tcx_egress));
}

#endif
