// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * mpls.bpf.c: the XDP program of ports that have a label space. A plain swap is done on this
 * page; whatever else the tables say goes through walk() and relabel.h. What has no labels, or has
 * lost them here, goes on in shunt_xdp(), which other ports have alone: a hit there pays nothing
 * for labels.
 *
 * What only software can answer (TTL, size, router alert, OAM) is passed up untouched: the
 * daemon reads it there from a packet socket, and the kernel, which has no label table
 * for this port, drops it.
 */
#include "verdict.h"
#include "mpls.h"
#include "relabel.h"
#include "impose.h"

enum { SWAP = NHLFE_SEND | NHLFE_SWAP << 8 | 1 << 16 | 1 << 24 };	/* and nothing else */

static __always_inline int out(struct xdp_md *ctx, __u32 cpu, enum reason reason, int verdict)
{
	forget(reason);		/* where it comes from: the verifier knows less of that */
	return leave(tally_of(cpu, STAGE_MPLS, ctx->ingress_ifindex), reason, verdict);
}

/* On to where IP is repeated. */
static __always_inline int as_ip(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &programs, PROGRAM_XDP);
	return XDP_PASS;
}

static __always_inline const struct label_port *port_of_labels(__u32 ifindex)
{
	const struct label_port *p = &label_ports[ifindex % MAX_PORTS];

	return p->ifindex == ifindex && p->space ? p : 0;
}

static __always_inline int for_us(const void *data, const struct label_port *p)
{
	return *(const word *)data == *(const word *)p->mac && ((const __u16 *)data)[2] == *(const __u16 *)(p->mac + 4);
}

/* For the daemon, for nobody, or for who takes IP packets here. */
static __always_inline int verdict_of(struct xdp_md *ctx, const struct walk *w, enum reason reason)
{
	__u32 cpu = this_cpu();

	switch (reason) {
	case REASON_MPLS_SWITCHED:
		return out(ctx, cpu, reason, XDP_REDIRECT);
	case REASON_MPLS_DELIVERED:
		out(ctx, cpu, reason, XDP_PASS);
		return as_ip(ctx);
	case REASON_MPLS_TTL:
	case REASON_MPLS_OVER_MTU:
	case REASON_MPLS_ALERT:
	case REASON_MPLS_OAM:
		lose(w->segment, reason);
		return out(ctx, cpu, reason, XDP_PASS);
	default:
		lose(w->segment, reason);
		return out(ctx, cpu, reason, XDP_DROP);
	}
}

/* Whatever a plain swap is not. */
static __noinline int travel(struct xdp_md *ctx, __u32 lse, __u32 space)
{
	struct walk w = {
		.top = ETH_HLEN + nothing(), .lse = lse, .space = space, .model = NONE + nothing(), .ceiling = NONE + nothing(),
		.bottom = nothing(), .exposed = nothing(), .entered = nothing(), .family = nothing(),
		.octets = bpf_xdp_get_buff_len(ctx) - ETH_HLEN,
	};
	struct relabel r = {};
	enum reason reason = walk(ctx, &w);

	if (!reason && w.n && w.n->end == NHLFE_SEND) {
		reason = judge(ctx, &w, &r);
		if (!reason)
			reason = send_on(ctx, &w, &r);
	} else if (!reason) {
		reason = deliver(ctx, &w, &r);
	}
	return verdict_of(ctx, &w, reason);
}

/* Nobody looks the frame's label up, or its way out has just gone. */
static __noinline int unfit(struct xdp_md *ctx, enum reason reason)
{
	int verdict = reason == REASON_NOT_HOST || reason == REASON_MPLS_OFF ? XDP_PASS : XDP_DROP;

	return out(ctx, this_cpu(), reason, verdict);
}

/* 01-00-5e-8v-wx-yz: RFC 5332 8. */
static __always_inline int to_group(const void *data)
{
	return (__builtin_bswap32(*(const word *)data) & ~15u) == 0x01005e80;
}

/* A frame with labels that is not to this port's MAC, or has an upstream-assigned label on top
 * (RFC 5331). Those are taken from a group alone, by a port with a space for them. */
static __noinline int group(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct label_port *p = port_of_labels(ctx->ingress_ifindex);
	__u32 lse, upstream;

	if (!p || data + ETH_HLEN > end)
		return unfit(ctx, REASON_MPLS_OFF);
	upstream = ((__u16 *)data)[6] == wire16(ETH_P_MPLS_MC);
	if (!p->upstream || !to_group(data))
		return unfit(ctx, upstream ? REASON_MPLS_OFF : REASON_NOT_HOST);
	if (data + ETH_HLEN + LSE > end)
		return unfit(ctx, REASON_MPLS_MALFORMED);
	if (ctl.label_hold && passed(ctl.beat + ctl.label_hold, now_jiffies()))
		return unfit(ctx, REASON_MPLS_ORPHANED);
	lse = __builtin_bswap32(*(word *)(data + ETH_HLEN));
	return travel(ctx, lse, (upstream ? p->upstream : p->space) - 1);
}

/* Not a label of ours, or none at all. */
static __always_inline int other(struct xdp_md *ctx, const void *data, const void *end)
{
	__u16 type;

	if (data + ETH_HLEN > end)
		return as_ip(ctx);
	type = ((const __u16 *)data)[6];
	if (type == wire16(ETH_P_MPLS_UC))
		return unfit(ctx, REASON_MPLS_MALFORMED);
	return type == wire16(ETH_P_MPLS_MC) ? group(ctx) : as_ip(ctx);
}

SEC("xdp.frags")
int shunt_mpls(struct xdp_md *ctx)
{
	__u32 octets = bpf_xdp_get_buff_len(ctx) - ETH_HLEN, cpu = this_cpu(), now = now_jiffies(), lse;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct label_port *p = port_of_labels(ctx->ingress_ifindex);
	const struct adjacency *a;
	const struct nhlfe *n;
	const struct ilm *i;

	if (data + ETH_HLEN + LSE > end || ((__u16 *)data)[6] != wire16(ETH_P_MPLS_UC))
		return other(ctx, data, end);
	if (rarely(!p))
		return unfit(ctx, REASON_MPLS_OFF);
	if (rarely(!for_us(data, p)))
		return group(ctx);
	if (rarely(ctl.label_hold && passed(ctl.beat + ctl.label_hold, now)))
		return unfit(ctx, REASON_MPLS_ORPHANED);
	lse = __builtin_bswap32(*(word *)(data + ETH_HLEN));
	i = ilm_of(p->space - 1, label_in(lse));
	if (rarely(!i))
		return travel(ctx, lse, p->space - 1);
	n = nhlfe_of(i->nhlfe);
	a = adjacency_of(n->adjacency);
	if (*(const word *)&n->end != SWAP || n->push[0].flags || ttl_in(lse) <= 1 ||
	    !a->ifindex || octets > a->mtu || (n->mtu && octets > n->mtu))
		return travel(ctx, lse, p->space - 1);
	swap_label(data, n, a, lse);
	count_segment(segment_of(in_segments, cpu, i->segment), octets);
	if (rarely(bpf_redirect_map(&tx, a->tx, XDP_DROP) != XDP_REDIRECT)) {
		lose(i->segment, REASON_MPLS_EGRESS_GONE);
		return unfit(ctx, REASON_MPLS_EGRESS_GONE);
	}
	count_segment(segment_of(out_segments, cpu, n->segment), octets);
	return out(ctx, cpu, REASON_MPLS_SWITCHED, XDP_REDIRECT);
}

/* bpf2go emits an enum only if the object refers to it. */
const struct {
	enum mpls_size mpls_size;
	enum nhlfe_end nhlfe_end;
	enum nhlfe_flag nhlfe_flag;
	enum push_flag push_flag;
	enum nhlfe_need nhlfe_need;
	enum program program;
	struct ilm ilm;
} *names __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
