// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * health.bpf.c: is the fast path well? The daemon's heartbeat, and what became of
 * redirected frames: a driver that takes none says so only in the kernel's
 * tracepoints (design rule 9). And where NAPI polls end. The programs stay attached while the daemon is
 * dead: then they act on a loss themselves.
 */
#include "verdict.h"
#include "flow.h"

/* In this network namespace? Tracepoints are global. The lower half is compared: an inode's number has its highest
 * bit set. Trusted pointers, so plain loads. */
static __always_inline int is_here(const struct net_device *dev)
{
	return !(__u32)LOADED(dev->nd_net.net->ns.inum, ^, NETNS);
}

enum { BULK = 16, POLL = 64 };	/* DEV_MAP_BULK_SIZE, NAPI_POLL_WEIGHT */

/* Take XDP from an egress that loses frames, as the daemon does while it lives: first nothing more is learned for
 * it, then nothing is used that was. A daemon gives it back. */
static __noinline int mute(__u32 ifindex)
{
	struct port *p = bpf_map_lookup_elem(&ports, &ifindex);

	if (!p || !(p->flags & PORT_XDP_TX))
		return 0;
	__sync_fetch_and_and(&p->flags, ~PORT_XDP_TX);
	if (__sync_fetch_and_add(&ctl.gen, 1) + 1 == GEN_NEVER)
		__sync_fetch_and_add(&ctl.gen, 1);
	return 0;
}

/* A full queue now and then is no reason: as checkTransmits(), over 16 frames and over one in eight within 100 ms. */
static __always_inline int loses_many(struct transmit *t, __u32 drops)
{
	__u32 now = now_jiffies();

	if (now - t->window > ctl.hz / 10) {
		t->window = now;
		t->lost = 0;
		t->before = t->sent;
	}
	t->lost += drops;
	return t->lost > 16 && t->lost > (t->sent - t->before + t->lost) / 8;
}

/* Does a full bulk end the NAPI poll that XDP waits for? It leaves at the poll's end, or to make
 * room for a frame that is redirected already but not in the queue yet (bq_enqueue()): then the
 * frames that the port's packets were redirected as are ahead of those that left by one more at
 * the least. The least they are ahead is known once more bulks were seen than a poll has. (If
 * they go to several ports it is not met again: an end is missed, and none made up.) */
static __noinline int ends_poll(struct transmit *t, __u64 cpu, __u32 port)
{
	const struct tally *ip = tally_of(cpu, STAGE_XDP, port);
	const struct tally *mpls = tally_of(cpu, STAGE_MPLS, port);
	__u32 ahead, bulks = ++t->bulks;

	ahead = ip->packets[REASON_HIT] + mpls->packets[REASON_MPLS_SWITCHED] +
		mpls->packets[REASON_MPLS_IMPOSED] - bulks * BULK;
	if (bulks == 1 || (__s32)(ahead - t->least) < 0)
		t->least = ahead;
	return bulks > POLL / BULK && ahead == t->least;
}

/* A bulk that lost frames, or while XDP waits for a poll's end. */
static __noinline int unusual(struct transmit *t, __u64 *ctx, __u64 cpu)
{
	const struct net_device *from = (void *)ctx[0], *to = (void *)ctx[1];
	int sent = ctx[2], drops = ctx[3], err = ctx[4];

	t->sent += (__u32)sent;		/* 0 with an error */
	if (err < 0)
		t->errors += drops;
	else
		t->drops += drops;
	if (drops && !daemon_lives() && (err < 0 || loses_many(t, drops)))
		mute(to->ifindex);
	if (sent + drops == BULK && (!t->waits || t->waits != from->ifindex || !ends_poll(t, cpu, from->ifindex)))
		return 0;
	t->polls++;
	t->waits = 0;
	return 0;
}

/* One bulk of frames given to a driver (bq_xmit_all() in kernel/bpf/devmap.c): from, to, sent, drops, err. The
 * whole machine's are, so it looks first whose it is, and takes no argument before it is asked for. */
SEC("tp_btf/xdp_devmap_xmit")
int shunt_xmit(__u64 *ctx)
{
	const struct net_device *to = (void *)ctx[1];
	struct transmit *t;
	__u32 sent;
	__u64 cpu;

	if (!is_here(to))
		return 0;
	cpu = this_cpu();
	t = transmit_of(cpu, to->ifindex);
	sent = ctx[2];
	if (rarely(t->waits || (int)ctx[3]))
		return unusual(t, ctx, cpu);
	t->sent += sent;
	if (sent != BULK)
		t->polls++;
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
	__u32 ifindex;

	if (map_type != BPF_MAP_TYPE_DEVMAP || !is_here(dev))
		return 0;
	/* `tgt` points to nothing known: not every kernel lets a program load it from its context */
	if (bpf_probe_read_kernel(&to, sizeof(to), &ctx[2]) || !to)
		return 0;
	ifindex = BPF_CORE_READ(to, dev, ifindex);
	transmit_of(this_cpu(), ifindex)->errors++;
	if (!daemon_lives())
		mute(ifindex);
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
