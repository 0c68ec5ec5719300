// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * health.bpf.c: is the fast path well? The daemon's heartbeat, and what became of
 * redirected frames: a driver that takes none says so only in the kernel's
 * tracepoints (design rule 9). And where NAPI polls end.
 */
#include "verdict.h"
#include "flow.h"

/* This network namespace; tracepoints are global. */
const volatile __u32 netns = 0;

static __always_inline int is_here(const struct net_device *dev)
{
	return dev->nd_net.net->ns.inum == netns;	/* trusted pointers: plain loads */
}

enum { BULK = 16 };	/* DEV_MAP_BULK_SIZE */

/* Does a bulk that leaves end a NAPI poll? One that is not full does. One that is full leaves
 * at the poll's end, or to make room for a frame that is redirected already but not in the
 * queue yet (bq_enqueue()): so the frames that this port's packets were redirected as are then
 * ahead of those that left, by one more at the least than where polls end. (While the daemon
 * was away nobody counted: the next bulk that is not full mends that.) */
static __always_inline int ends_poll(__u32 cpu, const struct net_device *from, int frames)
{
	const struct tally *ip = tally_of(cpu, STAGE_XDP, from->ifindex);
	const struct tally *mpls = tally_of(cpu, STAGE_MPLS, from->ifindex);
	struct transmit *t = transmit_of(cpu, from->ifindex);
	__u32 ahead;

	t->left += frames;
	ahead = ip->packets[REASON_HIT] + mpls->packets[REASON_MPLS_SWITCHED] +
		mpls->packets[REASON_MPLS_IMPOSED] - t->left;
	if (frames >= BULK && (__s32)(ahead - t->ahead) > 0)
		return 0;
	t->ahead = ahead;
	return 1;
}

/* One bulk of frames given to a driver (bq_xmit_all() in kernel/bpf/devmap.c). */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(shunt_xmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	__u32 cpu = this_cpu(), none = 0, *ended;
	struct transmit *t;

	if (!is_here(to))
		return 0;
	t = transmit_of(cpu, to->ifindex);
	t->sent += sent;
	if (err < 0)
		t->errors += drops;
	else
		t->drops += drops;
	ended = bpf_map_lookup_elem(&polls, &none);
	if (ended && ends_poll(cpu, from, sent + drops))
		++*ended;
	return 0;
}

struct bpf_prog;
struct bpf_dtab_netdev { struct net_device *dev; } CORE;

/* One frame that did not even get to the driver. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(shunt_redirect_err, const struct net_device *dev, const struct bpf_prog *prog, const void *tgt,
	     int err, int map_type, __u32 map_id, __u32 index)
{
	const struct bpf_dtab_netdev *to;

	if (map_type != BPF_MAP_TYPE_DEVMAP || !is_here(dev))
		return 0;
	transmit_of(this_cpu(), dev->ifindex)->left++;	/* it waits in no queue: ends_poll() */
	/* `tgt` points to nothing known: not every kernel lets a program load it from its context */
	if (!bpf_probe_read_kernel(&to, sizeof(to), &ctx[2]) && to)
		transmit_of(this_cpu(), BPF_CORE_READ(to, dev, ifindex))->errors++;
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
