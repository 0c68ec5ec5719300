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

static __always_inline int out(struct xdp_md *ctx, __u64 cpu, enum reason reason, int verdict)
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

static __always_inline const struct label_port *label_port_of(__u32 ifindex)
{
	return &label_ports[ifindex % MAX_PORTS];
}

/* Where the frame's label is looked up. LABEL_SPACES and more: nowhere, it is not for the port's MAC. */
static __always_inline __u64 space_of(const void *data, const struct label_port *p)
{
	return *(const dword *)data << LABEL_PORT_MAC ^ p->key;
}

/* The label on top, in wire order. */
static __always_inline __u32 raw_lse(const void *data) { return OUR(*(const word *)(data + ETH_HLEN)); }

static __always_inline __u32 lse_of(const void *data) { return __builtin_bswap32(raw_lse(data)); }

/* For the daemon, for nobody, or for who takes IP packets here. */
static __always_inline int verdict_of(struct xdp_md *ctx, const struct walk *w, enum reason reason)
{
	__u64 cpu = this_cpu();

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

/* Whatever a plain swap is not. Not static, as dscp_below() is not. */
__noinline int travel(struct xdp_md *ctx, __u32 lse, __u32 space)
{
	struct walk w = {
		.top = ETH_HLEN, .lse = lse, .space = space, .model = NONE, .ceiling = NONE,
		.octets = bpf_xdp_get_buff_len(ctx) - ETH_HLEN,
	};
	struct relabel r = {};
	enum reason reason = walk(ctx, &w);

	if (!reason && w.end == NHLFE_SEND) {
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
	const struct label_port *p = label_port_of(ctx->ingress_ifindex);
	__u32 upstream;

	if (p->ifindex != ctx->ingress_ifindex || data + ETH_HLEN > end)
		return unfit(ctx, REASON_MPLS_OFF);
	upstream = ((__u16 *)data)[6] == wire16(ETH_P_MPLS_MC);
	if (!p->upstream || !to_group(data))
		return unfit(ctx, upstream ? REASON_MPLS_OFF : REASON_NOT_HOST);
	if (data + ETH_HLEN + LSE > end)
		return unfit(ctx, REASON_MPLS_MALFORMED);
	if (orphaned(now_jiffies()))
		return unfit(ctx, REASON_MPLS_ORPHANED);
	return travel(ctx, lse_of(data), upstream ? p->upstream - 1 : (__u16)p->key);
}

static __always_inline int labelled(const void *data, const void *end)
{
	return data + ETH_HLEN + LSE <= end && ((const __u16 *)data)[6] == wire16(ETH_P_MPLS_UC);
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

/* A frame is swapped and counted, and its way out has gone. */
static __noinline int gone(struct xdp_md *ctx, __u32 in, struct segment *out)
{
	tally_of(this_cpu(), STAGE_MPLS, ctx->ingress_ifindex)->packets[REASON_MPLS_SWITCHED]--;
	out->packets--;
	out->octets -= bpf_xdp_get_buff_len(ctx) - ETH_HLEN;
	lose(in, REASON_MPLS_EGRESS_GONE);
	return unfit(ctx, REASON_MPLS_EGRESS_GONE);
}

/* The rest of a long frame is in fragments, or there is something else about it. */
static __always_inline __u32 flags_of(void *ctx)
{
	const struct xdp_buff *x = bpf_cast_to_kern_ctx(ctx);

	return x->flags;
}

/* Whatever a plain swap is not, from the beginning. */
static __noinline int any(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct label_port *p = label_port_of(ctx->ingress_ifindex);

	if (!labelled(data, end))
		return other(ctx, data, end);
	if (p->ifindex != ctx->ingress_ifindex)
		return unfit(ctx, REASON_MPLS_OFF);
	if (space_of(data, p) >= LABEL_SPACES)
		return group(ctx);
	if (orphaned(now_jiffies()))
		return unfit(ctx, REASON_MPLS_ORPHANED);
	return travel(ctx, lse_of(data), space_of(data, p));
}

/* A plain swap, in one line: at the first doubt any() begins anew. Calls come first and last, since they
 * make a program put aside what it holds in registers; the redirect is the last (as for IP: xdp.bpf.c). */
SEC("xdp.frags")
int shunt_mpls(struct xdp_md *ctx)
{
	const struct label_port *p;
	const struct adjacency *a;
	struct segment_pair *rows;
	struct segment *out;
	const struct ilm *i;
	__u32 port, now, lse, octets, in;
	__u64 cpu, space, to;
	void *data, *end;
	long verdict;

	if (rarely(flags_of(ctx)))
		return any(ctx);
	cpu = this_cpu();
	now = now_jiffies();
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!labelled(data, end))
		return other(ctx, data, end);
	port = ctx->ingress_ifindex;
	p = label_port_of(port);
	if (rarely(orphaned(now) || p->ifindex != port))
		return any(ctx);
	lse = raw_lse(data);
	i = ilm_platform(label_in(__builtin_bswap32(lse)));
	space = space_of(data, p);
	if (rarely(space)) {
		i = space < LABEL_SPACES ? ilm_of(space, label_in(lse_of(data))) : 0;
		if (!i)
			return any(ctx);
	}
	to = *(__u64 *)row_at(swaps, LOADED(i->nhlfe, &, NHLFES), sizeof(to));
	a = &adjacencies[to >> SWAP_ADJACENCY];		/* of no plain swap: 0, which has no MTU */
	octets = end - data - ETH_HLEN;
	if (rarely(octets > a->mtu || lse < 2 * TTL_ONE))
		return any(ctx);
	swap_label(data, lse, to, a);
	rows = segments_of(cpu);
	in = i->segment;
	count_segment(&segment_at(rows, in)->in, octets);
	out = &segment_at(rows, to >> SWAP_SEGMENT)->out;
	count_segment(out, octets);
	tally_of(cpu, STAGE_MPLS, port)->packets[REASON_MPLS_SWITCHED]++;
	verdict = bpf_redirect_map(&tx, a->tx, XDP_DROP);
	if (rarely(another(verdict) != XDP_REDIRECT))
		return gone(ctx, in, out);
	return verdict;
}

/* bpf2go emits an enum only if the object refers to it. */
const struct {
	enum mpls_size mpls_size;
	enum nhlfe_end nhlfe_end;
	enum nhlfe_flag nhlfe_flag;
	enum swap swap;
	enum push_flag push_flag;
	enum nhlfe_need nhlfe_need;
	enum program program;
	struct ilm ilm;
} *names __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
