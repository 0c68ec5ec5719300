// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * mpls.bpf.c: the way of a labelled frame, called by shunt_xdp(). A plain swap is done on this
 * page; whatever else the tables say goes through walk() and relabel.h.
 *
 * What only software can answer (TTL, size, router alert, OAM) is passed up untouched: the
 * daemon reads it there from a packet socket, and the kernel, which has no label table
 * for this port, drops it.
 */
#include "verdict.h"
#include "mpls.h"
#include "relabel.h"

enum { SWAP = NHLFE_SEND | NHLFE_SWAP << 8 | 1 << 16 | 1 << 24 };	/* and nothing else */

static __always_inline int out(struct xdp_md *ctx, enum reason reason, int verdict)
{
	forget(reason);		/* where it comes from: the verifier knows less of that */
	return leave(tally_of(this_cpu(), STAGE_MPLS, ctx->ingress_ifindex), reason, verdict);
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

static __always_inline int is_orphaned(void)
{
	return ctl.label_hold && passed(ctl.beat + ctl.label_hold, now_jiffies());
}

/* For the daemon, for nobody, or for who takes IP packets here. */
static __always_inline int verdict_of(struct xdp_md *ctx, const struct walk *w, enum reason reason)
{
	switch (reason) {
	case REASON_MPLS_SWITCHED:
		return out(ctx, reason, XDP_REDIRECT);
	case REASON_MPLS_DELIVERED:
		out(ctx, reason, XDP_PASS);
		bpf_tail_call(ctx, &programs, PROGRAM_XDP);
		return XDP_PASS;
	case REASON_MPLS_TTL:
	case REASON_MPLS_OVER_MTU:
	case REASON_MPLS_ALERT:
	case REASON_MPLS_OAM:
		lose(w->segment, reason);
		return out(ctx, reason, XDP_PASS);
	default:
		lose(w->segment, reason);
		return out(ctx, reason, XDP_DROP);
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

SEC("xdp.frags")
int shunt_mpls(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 octets = bpf_xdp_get_buff_len(ctx) - ETH_HLEN, lse, space;
	const struct label_port *p = port_of_labels(ctx->ingress_ifindex);
	const struct adjacency *a;
	const struct nhlfe *n;
	const struct ilm *i;

	if (!p)
		return out(ctx, REASON_MPLS_OFF, XDP_PASS);
	if (data + ETH_HLEN + LSE > end)
		return out(ctx, REASON_MPLS_MALFORMED, XDP_DROP);
	if (!for_us(data, p))
		return out(ctx, REASON_NOT_HOST, XDP_PASS);
	if (is_orphaned())
		return out(ctx, REASON_MPLS_ORPHANED, XDP_DROP);
	lse = __builtin_bswap32(*(word *)(data + ETH_HLEN));
	space = p->space - 1;
	i = ilm_of(space, label_in(lse));
	if (!i)
		return travel(ctx, lse, space);
	n = nhlfe_of(i->nhlfe);
	a = adjacency_of(n->adjacency);
	if (*(const word *)&n->end != SWAP || n->push[0].flags || ttl_in(lse) <= 1 ||
	    !a->ifindex || octets > a->mtu || (n->mtu && octets > n->mtu))
		return travel(ctx, lse, space);
	*(word *)(data + ETH_HLEN) = __builtin_bswap32(n->push[0].lse | ((lse & 0xfff) - 1));
	*(dword *)data = *(const dword *)a->dmac;
	*(word *)(data + 8) = *(const word *)(a->dmac + 8);
	count_segment(segment_of(in_segments, this_cpu(), i->segment), octets);
	if (bpf_redirect_map(&tx, a->tx, XDP_DROP) != XDP_REDIRECT) {
		lose(i->segment, REASON_MPLS_EGRESS_GONE);
		return out(ctx, REASON_MPLS_EGRESS_GONE, XDP_DROP);
	}
	count_segment(segment_of(out_segments, this_cpu(), n->segment), octets);
	return out(ctx, REASON_MPLS_SWITCHED, XDP_REDIRECT);
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
