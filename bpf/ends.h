/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ends.h: what becomes of a SYN, FIN or RST, at XDP and TC ingress. close.h judges it by what shunt knows;
 * before it is dropped, conntrack is asked whether it would not judge it itself. It would if the connection
 * is a newer one than shunt knows: its window check is on until be-liberal is set.
 *
 * Includer: LOAD_CONTEXT and LOAD_BYTES as for odd.h, and CT_LOOKUP, the look-up of conntrack in that context.
 */
#ifndef SHUNT_ENDS_H
#define SHUNT_ENDS_H

#include "odd.h"

/* net/netfilter/nf_conntrack_bpf.c; as long as in Linux 6.6: zone 0 */
struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *CT_LOOKUP(LOAD_CONTEXT *ctx, struct bpf_sock_tuple *tuple, __u32 tuple__sz,
				 struct bpf_ct_opts *opts, __u32 opts__sz) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

/* Is conntrack's window check off for this segment's connection? If conntrack cannot be asked, the answer is what
 * the entries say: they were liberal. Not static: the verifier looks at it once. */
__noinline int is_liberal(LOAD_CONTEXT *ctx, const struct closing *c)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = IPPROTO_TCP };
	struct bpf_sock_tuple t = {};
	__u32 size = sizeof(t.ipv4);
	struct nf_conn *ct;
	__u8 flags;

	if (!c)			/* never, but the verifier asks */
		return 1;
	if (c->zoned || !has_lookups())
		return 1;
	if (family_of(&c->key) == 4) {
		t.ipv4.saddr = c->key.saddr;
		t.ipv4.daddr = c->key.daddr;
		t.ipv4.sport = c->key.sport;
		t.ipv4.dport = c->key.dport;
	} else {
		__builtin_memcpy(t.ipv6.saddr, c->in6.saddr, sizeof(c->in6.saddr));
		__builtin_memcpy(t.ipv6.daddr, c->in6.daddr, sizeof(c->in6.daddr));
		t.ipv6.saddr[3] = c->key.saddr;
		t.ipv6.daddr[3] = c->key.daddr;
		t.ipv6.sport = c->key.sport;
		t.ipv6.dport = c->key.dport;
		size = sizeof(t.ipv6);
	}
	ct = CT_LOOKUP(ctx, &t, size, &opts, sizeof(opts));
	if (!ct)
		return 0;
	flags = BPF_CORE_READ(ct, proto.tcp.seen[0].flags) | BPF_CORE_READ(ct, proto.tcp.seen[1].flags);
	bpf_ct_release(ct);
	return flags & IP_CT_TCP_FLAG_BE_LIBERAL;
}

/* A segment that does not fit its own entry: of another port's, of a newer connection, or forged. Returns what
 * it is counted as: TCP_IMPLAUSIBLE is to be dropped. Not static, as flow_close() is not. */
__noinline enum reason end_doubt(LOAD_CONTEXT *ctx, struct closing *c)
{
	__u32 own;

	if (!c)			/* never, but the verifier asks */
		return REASON_TCP_CLOSE;
	own = c->key.kind;
	flow_search(c);
	if (c->fits) {
		flow_close(c);
		if (c->other) {
			c->key.kind = c->other;
			flow_close(c);
			c->key.kind = own;
		}
		return c->reason;
	}
	if (c->known && is_liberal(ctx, c))
		return REASON_TCP_IMPLAUSIBLE;
	if (c->known)
		flow_renounce(c);
	return c->reason;
}

/* What a SYN, FIN or RST is counted as: TCP_IMPLAUSIBLE is to be dropped, the rest is the kernel's. A sample is
 * kept where no slot says so. */
static __always_inline enum reason end_judge(LOAD_CONTEXT *ctx, struct closing *c)
{
	enum reason reason = c->reason;

	if (flow_close(c))
		reason = end_doubt(ctx, c);
	if (reason == REASON_TCP_IMPLAUSIBLE || (c->alone && !c->odd))
		sample_keep(&c->key, &c->in6, about(reason, 0, 0));
	return reason;
}

/* A frame that parse.h found to be a SYN, FIN or RST. */
static __always_inline enum reason close_by(LOAD_CONTEXT *ctx, struct frame *f, enum reason reason)
{
	struct closing closing;

	take_key(f);
	closing = closing_of(f, reason);
	return end_judge(ctx, &closing);
}

/* The same behind an odd IP header: the reason of that, or TCP_IMPLAUSIBLE. (Two calls, one after the
 * other, since the stack has no room for one in the other.) */
static __always_inline enum reason close_odd(LOAD_CONTEXT *ctx, __u32 port, __u32 len, enum reason reason)
{
	struct closing c = {};

	if (closing_odd(ctx, port, len, &c) && end_judge(ctx, &c) == REASON_TCP_IMPLAUSIBLE)
		return REASON_TCP_IMPLAUSIBLE;
	return reason;
}

#endif
