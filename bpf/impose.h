/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * impose.h: IP packets get their first labels. shunt_impose() sits at the inner end of the imposer,
 * the veth pair that TC egress sends them to (lsp.h), and XDP those of flows that it repeats: so all
 * of them come by one way and in order, with whole checksums, in Ethernet frames whose TTL the kernel
 * or the hit has counted down. What labels they get is asked of the tables here, and only here.
 *
 * What only software can answer (size) is passed up; the daemon reads it there. To the kernel such a
 * frame is for somebody else (PACKET_OTHERHOST). Read by mpls.bpf.c.
 */
#ifndef SHUNT_IMPOSE_H
#define SHUNT_IMPOSE_H

#include "relabel.h"

/* The number of a packet's NHLFE; 0: it has none. */
static __always_inline const __u32 *ftn_of(const void *data, __u32 version)
{
	const void *ip = data + ETH_HLEN;
	struct prefix6 six = { .bits = 128 };
	struct prefix4 four = { .bits = 32 };

	if (version == 4) {
		four.addr = ((const struct iphdr *)ip)->daddr;
		return bpf_map_lookup_elem(&ftns4, &four);
	}
	__builtin_memcpy(six.addr, &((const struct ipv6hdr *)ip)->daddr, sizeof(six.addr));
	return bpf_map_lookup_elem(&ftns6, &six);
}

/* Through the tables, from the packet's NHLFE on. */
static __noinline enum reason set_out(struct xdp_md *ctx, __u32 class, __u32 nhlfe)
{
	struct walk w = {
		.top = ETH_HLEN, .bottom = 1, .bare = 1, .class = class, .model = NONE, .ceiling = NONE, .entered = 1,
		.row = row_of_nhlfe(nhlfe), .octets = bpf_xdp_get_buff_len(ctx) - ETH_HLEN,
	};
	struct relabel r = {};
	enum reason reason;

	if (!w.row)			/* walk() would look a label up */
		return REASON_MPLS_DISCARD;
	reason = walk(ctx, &w);
	if (!reason && w.end != NHLFE_SEND)
		return REASON_MPLS_MALFORMED;	/* the daemon takes no such FTN */
	if (!reason)
		reason = judge(ctx, &w, &r);
	return reason ? reason : send_on(ctx, &w, &r);
}

SEC("xdp.frags")
int shunt_impose(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tally *c = tally_of(this_cpu(), STAGE_MPLS, ctx->ingress_ifindex);
	__u32 version = version_at(data, end, ETH_HLEN);
	enum reason reason = REASON_MPLS_NO_LABEL;
	const __u32 *nhlfe;

	if (!version || ((__u16 *)data)[6] != wire16(version == 4 ? ETH_P_IP : ETH_P_IPV6))
		return leave(c, REASON_MPLS_PAYLOAD, XDP_DROP);
	nhlfe = ftn_of(data, version);
	if (nhlfe)
		reason = set_out(ctx, tos_at(data, end, ETH_HLEN, version) >> 5, *nhlfe);
	switch (reason) {
	case REASON_MPLS_SWITCHED:
		return leave(c, REASON_MPLS_IMPOSED, XDP_REDIRECT);
	case REASON_MPLS_OVER_MTU:
		return leave(c, reason, XDP_PASS);
	default:
		forget(reason);
		return leave(c, reason, XDP_DROP);
	}
}

#endif
