// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * health.bpf.c: is the fast path well? The daemon's heartbeat, and what became of
 * redirected frames: a driver that takes none says so only in the kernel's
 * tracepoints (design rule 9).
 */
#include "maps.h"
#include "flow.h"

/* This network namespace; tracepoints are global. */
const volatile __u32 netns = 0;


/* By ifindex of a port of this daemon: its index in `transmits`. */
static __always_inline struct transmit *transmit_of(const struct net_device *dev)
{
	__u32 ifindex = dev->ifindex;
	struct port *p;

	if (dev->nd_net.net->ns.inum != netns)	/* trusted pointers: plain loads */
		return 0;
	p = bpf_map_lookup_elem(&ports, &ifindex);
	if (!p)
		return 0;
	ifindex = p->tx;
	return bpf_map_lookup_elem(&transmits, &ifindex);
}

/* One bulk of frames given to a driver (bq_xmit_all() in kernel/bpf/devmap.c). */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(shunt_xmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	struct transmit *t = transmit_of(to);

	if (!t)
		return 0;
	t->sent += sent;
	if (err < 0)
		t->errors += drops;
	else
		t->drops += drops;
	return 0;
}

struct bpf_prog;

/* One frame that did not even get to the driver; `index` is the devmap's. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(shunt_redirect_err, const struct net_device *dev, const struct bpf_prog *prog, const void *tgt,
	     int err, int map_type, __u32 map_id, __u32 index)
{
	struct transmit *t;

	if (!transmit_of(dev))
		return 0;
	t = bpf_map_lookup_elem(&transmits, &index);
	if (t)
		t->errors++;
	return 0;
}

/* Run by the daemon: it lives, and what time is it in jiffies? */
SEC("syscall")
int shunt_beat(void *ctx)
{
	ctl.beat = now_jiffies();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
