// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xdp.bpf.c: the XDP way. A packet of an armed flow is rewritten and redirected to
 * its egress; any other goes up to TC ingress untouched.
 */
#include "verdict.h"
#include "parse.h"
#include "flow.h"
#include "edit.h"

/* Linear part back into the frame after a helper moved it; sizes were checked before. */
static __always_inline int again(struct xdp_md *ctx, struct frame *f)
{
	__u32 ip = f->key.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	f->data = (void *)(long)ctx->data;
	f->end = (void *)(long)ctx->data_end;
	f->eth = f->data;
	f->l3 = f->data + ETH_HLEN;
	f->l4 = f->l3 + ip;
	return within(f, f->l4, 0);
}

SEC("xdp.frags")
int shunt_xdp(struct xdp_md *ctx)
{
	struct frame f = {
		.data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end,
		.len = ctx->data_end - ctx->data, .key.port = ctx->ingress_ifindex,
	};
	struct tally *c = tally_of(STAGE_XDP, ctx->ingress_ifindex);
	struct rewrite rw = {};
	enum reason reason;
	struct place at;
	struct slot *s;
	__u32 tx_index;

	if (ctl.paused)
		return leave(c, REASON_PAUSED, XDP_PASS);
	reason = parse(&f);
	if (reason == REASON_TCP_CLOSE) {
		reason = flow_close(&f, reason);
		return leave(c, reason, reason == REASON_TCP_IMPLAUSIBLE ? XDP_DROP : XDP_PASS);
	}
	if (reason)
		return leave(c, reason, XDP_PASS);

	s = flow_find(&f.key, &f.in6, &at);
	if (!s)
		return leave(c, REASON_NO_ENTRY, XDP_PASS);
	reason = flow_check(s, &f);
	if (reason)
		return leave(c, reason, XDP_PASS);
	if (!(s->flags & SLOT_XDP))
		return leave(c, REASON_TC_WAY, XDP_PASS);
	if (f.l3_len > s->mtu)
		return leave(c, REASON_OVER_MTU, XDP_PASS);
	rewrite_copy(&rw, s);
	tx_index = s->tx;
	if (flow_torn(s, &at))
		return leave(c, REASON_BUSY, XDP_PASS);

	/* Padding or a trailer: the kernel would not forward it (pskb_trim_rcsum in ip_rcv_core) */
	if (f.len > ETH_HLEN + f.l3_len &&
	    (bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + f.l3_len - f.len)) || !again(ctx, &f)))
		return leave(c, REASON_MALFORMED, XDP_PASS);
	edit_headers(&f, &rw);
	if (rw.flags & SLOT_NAT)
		edit_l4_sum(&f, &rw);
	flow_count(s, &f, 1, f.l3_len);
	return leave(c, REASON_HIT, bpf_redirect_map(&tx, tx_index, XDP_DROP));
}

char _license[] SEC("license") = "Dual BSD/GPL";
