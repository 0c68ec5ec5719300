/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * learn.h: TC egress. The skb was sighted at ingress; what did the kernel do to it?
 *
 * The key and the generation come from the sighting, the rewrite from the two ends
 * of the same skb. Whatever shunt could not repeat byte for byte is a reason not to
 * learn: the difference must be exactly TTL - 1, MACs, DSCP and NAT, and where
 * conntrack knows the flow, its tuples must say the same.
 */
#ifndef SHUNT_LEARN_H
#define SHUNT_LEARN_H

#include "arm.h"
#include "verdict.h"
#include "policy.h"
#include "conntrack.h"
#include "others.h"

/* Does conntrack look at this family in this namespace? Its hook in PRE_ROUTING has a
 * priority of its own (ipv4_conntrack_ops); hook ops follow the hooks in memory. */
static __always_inline int conntrack_in_use(struct net *net, __u8 family)
{
	struct nf_hook_entries *e;
	struct nf_hook_ops *ops;
	void *trailer;
	__u16 n;

	if (family == 4)
		e = BPF_CORE_READ(net, nf.hooks_ipv4[NF_INET_PRE_ROUTING]);
	else
		e = BPF_CORE_READ(net, nf.hooks_ipv6[NF_INET_PRE_ROUTING]);
	if (!e)
		return 0;
	n = BPF_CORE_READ(e, num_hook_entries);
	trailer = (void *)e + bpf_core_field_offset(struct nf_hook_entries, hooks) +
		  n * bpf_core_type_size(struct nf_hook_entry);
	for (int i = 0; i < HOOKS_MAX; i++) {
		if (i >= n)
			return 0;
		if (bpf_probe_read_kernel(&ops, sizeof(ops), trailer + i * sizeof(ops)))
			return 1;
		if (BPF_CORE_READ(ops, priority) == NF_IP_PRI_CONNTRACK)
			return 1;
	}
	return 1;
}

struct tuple {
	__u32 saddr[4], daddr[4];
	__u16 sport, dport;
};

/* CO-RE relocates constant indices only. */
#define TUPLE_READ(t, ct, dir) do {							\
	BPF_CORE_READ_INTO(&(t)->saddr, ct, tuplehash[dir].tuple.src.u3);		\
	BPF_CORE_READ_INTO(&(t)->daddr, ct, tuplehash[dir].tuple.dst.u3);		\
	BPF_CORE_READ_INTO(&(t)->sport, ct, tuplehash[dir].tuple.src.u.all);		\
	BPF_CORE_READ_INTO(&(t)->dport, ct, tuplehash[dir].tuple.dst.u.all);		\
} while (0)

static __always_inline void tuple_read(struct tuple *t, struct nf_conn *ct, int dir)
{
	if (dir)
		TUPLE_READ(t, ct, 1);
	else
		TUPLE_READ(t, ct, 0);
}

static __always_inline int same_address(const __u32 *a, __u8 family, const __u32 *head, __u32 last)
{
	if (family == 4)
		return a[0] == last;
	return a[0] == head[0] && a[1] == head[1] && a[2] == head[2] && a[3] == last;
}

/* Is the packet one of conntrack's direction t, or (inverse) its answer's mirror image? */
static __always_inline int tuple_is(const struct tuple *t, const struct flow_key *k,
				    const struct flow_words *w, int inverse)
{
	const __u32 *src = inverse ? t->daddr : t->saddr, *dst = inverse ? t->saddr : t->daddr;

	if (!same_address(src, family_of(k), w->saddr, k->saddr) ||
	    !same_address(dst, family_of(k), w->daddr, k->daddr))
		return 0;
	switch (proto_of(k)) {
	case IPPROTO_TCP: case IPPROTO_UDP: case IPPROTO_SCTP: case IPPROTO_DCCP: case IPPROTO_UDPLITE:
		return k->sport == (inverse ? t->dport : t->sport) &&
		       k->dport == (inverse ? t->sport : t->dport);
	case IPPROTO_ICMP: case IPPROTO_ICMPV6:
		return k->sport == t->sport;	/* the id stands in src both ways */
	}
	return 1;
}

static __always_inline int ct_has_helper(struct nf_conn *ct, unsigned long status)
{
	struct nf_ct_ext *ext = BPF_CORE_READ(ct, ext);
	struct nf_conn_help *help;
	__u8 at;

	if (status & IPS_HELPER)
		return 1;
	if (!ext)
		return 0;
	at = BPF_CORE_READ(ext, offset[NF_CT_EXT_HELPER]);
	if (!at)
		return 0;
	help = (void *)ext + at;
	return BPF_CORE_READ(help, helper) != 0;
}

/* Please set be-liberal: asked at most four times a second per flow. */
static __always_inline void ask_liberal(struct nf_conn *ct, struct slot *s, __u8 family)
{
	__u32 now = now_jiffies() - ctl.hz / 20;	/* an armed entry's last NAPI poll is over, too: poll_goes_on() */
	struct event *e;
	struct tuple t;

	if (now - s->lease < ctl.hz / 4)
		return;
	s->lease = now;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return;
	tuple_read(&t, ct, 0);
	e->kind = EVENT_LIBERAL;
	e->family = family;
	e->proto = IPPROTO_TCP;
	e->zone = ct_zone(ct, IP_CT_DIR_ORIGINAL);
	e->sport = t.sport;
	e->dport = t.dport;
	e->pad = 0;
	__builtin_memcpy(e->saddr, t.saddr, sizeof(e->saddr));
	__builtin_memcpy(e->daddr, t.daddr, sizeof(e->daddr));
	bpf_ringbuf_submit(e, 0);
}

/* TCP: only with the window check off, else conntrack would call the first packet
 * after a pause on the slow path invalid (tcp_in_window()). */
static __always_inline enum reason learn_tcp(struct nf_conn *ct, int dir, struct slot *s,
					     __u8 family, struct lesson *l)
{
	__u8 flags, seen;

	if (BPF_CORE_READ(ct, proto.tcp.state) != TCP_CONNTRACK_ESTABLISHED)
		return REASON_CT_NOT_ESTABLISHED;
	flags = BPF_CORE_READ(ct, proto.tcp.seen[0].flags);
	seen = BPF_CORE_READ(ct, proto.tcp.seen[1].flags);
	flags &= seen;
	seen |= BPF_CORE_READ(ct, proto.tcp.seen[0].flags);
	if (!(flags & IP_CT_TCP_FLAG_BE_LIBERAL)) {
		if (s->flags & SLOT_LIBERAL) {	/* that was an older connection */
			s->flags &= ~SLOT_LIBERAL;
			s->watch = 0;
		}
		ask_liberal(ct, s, family);
		return REASON_CT_NOT_LIBERAL;
	}
	/* A connection picked up in the middle has unknown scales: tcp_new() assumes SACK on
	 * both sides and does not check its windows of its own accord, and nor does shunt. */
	if (flags & IP_CT_TCP_FLAG_SACK_PERM && !(seen & IP_CT_TCP_FLAG_WINDOW_SCALE))
		return REASON_LEARNED;
	l->flags |= SLOT_LIBERAL;
	l->scale = BPF_CORE_READ(ct, proto.tcp.seen[0].td_scale);
	l->reverse_scale = BPF_CORE_READ(ct, proto.tcp.seen[1].td_scale);
	l->end = BPF_CORE_READ(ct, proto.tcp.seen[0].td_end);
	l->ack = BPF_CORE_READ(ct, proto.tcp.seen[0].td_maxack);
	if (dir) {
		l->scale = l->reverse_scale;
		l->reverse_scale = BPF_CORE_READ(ct, proto.tcp.seen[0].td_scale);
		l->end = BPF_CORE_READ(ct, proto.tcp.seen[1].td_end);
		l->ack = BPF_CORE_READ(ct, proto.tcp.seen[1].td_maxack);
	}
	return REASON_LEARNED;
}

/* Jiffies until conntrack may take an answered UDP flow for a stream: its first packet after that makes it ASSURED and
 * gives it the longer timeout (nf_conntrack_udp_packet()), so the lease ends then. */
static __always_inline __u32 until_stream(struct nf_conn *ct, __u32 lease)
{
	__u32 left = (__u32)BPF_CORE_READ(ct, proto.udp.stream_ts) + 1 - now_jiffies();

	return left - 1 < lease ? left : lease;
}

/* What conntrack says of the two ends. Not static: see learn(). */
__noinline enum reason learn_conntrack(struct __sk_buff *skb, const struct sighting *g, struct slot *s, struct lesson *l)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	unsigned long nfct = k->_nfct, status;
	struct nf_conn *ct = (void *)(nfct & NFCT_PTRMASK);
	__u32 info = nfct & NFCT_INFOMASK;
	int dir = info >= IP_CT_IS_REPLY;
	struct tuple t;
	__s32 left;

	if (!g || !s || !l)		/* never, but the verifier asks */
		return REASON_SLOT_LOST;
	if (!ct) {
		if (info == IP_CT_UNTRACKED || !conntrack_in_use(BPF_CORE_READ(k, dev, nd_net.net), family_of(&g->key)))
			return REASON_LEARNED;
		return REASON_NO_CONNTRACK;
	}
	/* A module that came after this program was loaded: its structs are not known. nf_conn
	 * says nothing, the kernel proper may have it too (net/core/filter.c); helpers it has not. */
	if (!bpf_core_type_exists(struct nf_conn) || !bpf_core_type_exists(struct nf_conn_help))
		return REASON_NO_CONNTRACK;
	if (info == IP_CT_RELATED || info == IP_CT_RELATED_REPLY)
		return REASON_CT_RELATED;
	status = BPF_CORE_READ(ct, status);
	if (!(status & IPS_CONFIRMED) || status & IPS_DYING)
		return REASON_CT_UNCONFIRMED;
	if (status & IPS_SEQ_ADJUST)
		return REASON_CT_SEQADJ;
	if (ct_has_helper(ct, status))
		return REASON_CT_HELPER;
	tuple_read(&t, ct, dir);
	if (!tuple_is(&t, &g->key, &g->in6, 0))
		return REASON_CT_TUPLE_DIFFERS;
	tuple_read(&t, ct, !dir);
	if (!tuple_is(&t, &g->out, &g->out6, 1))
		return REASON_CT_TUPLE_DIFFERS;
	/* never over half of what is left: else a short timeout dies under traffic */
	left = (__s32)(BPF_CORE_READ(ct, timeout) - now_jiffies());
	if (left < (__s32)(ctl.hz / 5))
		return REASON_CT_EXPIRING;
	if (l->lease > (__u32)left / 2)
		l->lease = left / 2;
	if (proto_of(&g->key) == IPPROTO_UDP)
		l->lease = until_stream(ct, l->lease);
	l->flags |= SLOT_CT;
	l->zone = ct_zone(ct, dir);
	l->reverse_zone = ct_zone(ct, !dir);
	/* their state machines live by chunks that conntrack would not see */
	if (proto_of(&g->key) == IPPROTO_SCTP || proto_of(&g->key) == IPPROTO_DCCP)
		return REASON_CT_NOT_ESTABLISHED;
	return proto_of(&g->key) == IPPROTO_TCP ? learn_tcp(ct, dir, s, family_of(&g->key), l) : REASON_LEARNED;
}

/* Did the kernel's decision name a device above the port (a macvlan on it)? Such a device has
 * queues, filters and hooks of its own, which a hit would not pass. */
static __always_inline int learn_upper(struct sk_buff *k, __u32 oif)
{
	struct dst_entry *dst = (void *)(k->_skb_refdst & SKB_DST_PTRMASK);

	return dst && (__u32)BPF_CORE_READ(dst, dev, ifindex) != oif;
}

/* The smallest of device, route and path MTU; a longer packet is the kernel's. */
static __always_inline __u16 learn_mtu(struct sk_buff *k, __u8 family)
{
	struct dst_entry *dst = (void *)(k->_skb_refdst & SKB_DST_PTRMASK);
	__u32 mtu = BPF_CORE_READ(k, dev, mtu), m = 0;
	unsigned long metrics;

	if (dst) {
		metrics = BPF_CORE_READ(dst, _metrics) & ~3ul;
		bpf_probe_read_kernel(&m, sizeof(m), (void *)(metrics + METRIC_MTU * sizeof(m)));
		if (m && m < mtu)
			mtu = m;
		if (family == 4) {
			struct rtable *rt = (void *)dst;

			m = BPF_CORE_READ_BITFIELD_PROBED(rt, rt_pmtu);
		} else {
			m = BPF_CORE_READ(dst, dev, ip6_ptr, cnf.mtu6);
		}
		if (m && m < mtu)
			mtu = m;
	}
	return mtu < 0xffff ? mtu : 0xffff;
}

/* An IPv6 route may have a lifetime (a router advertisement, expires): the kernel stops using it at its end
 * (fib6_check_expired()) and announces that later, when it collects such routes. 30 days, the default of an
 * advertised prefix (RFC 4861, 6.2.1), are more jiffies than a __s32 holds at 1000 a second. */
static __always_inline __u32 learn_lifetime(struct sk_buff *k, __u8 family, __u32 lease)
{
	struct dst_entry *dst = (void *)(k->_skb_refdst & SKB_DST_PTRMASK);
	struct fib6_info *from;
	__s64 left;

	if (family != 6 || !dst || !bpf_core_type_exists(struct rt6_info))
		return lease;
	from = BPF_CORE_READ((struct rt6_info *)dst, from);
	if (!from || !(BPF_CORE_READ(from, fib6_flags) & RTF_EXPIRES))
		return lease;
	left = BPF_CORE_READ(from, expires) - bpf_jiffies64();
	if (left < 0)
		left = 0;
	return left < lease ? left : lease;
}

/* Checksum of the L4 header after NAT, from the one before it. */
static __always_inline __u16 l4_sum_after(const struct sighting *g, __u8 proto, __u16 addresses, __u16 all)
{
	__u16 sum;

	if (g->partial)		/* inet_proto_csum_replace4(): a plain sum of the pseudo header */
		return csum_fold((__u64)g->l4_sum + addresses);
	if (proto == IPPROTO_UDP && !g->l4_sum)
		return 0;
	sum = csum_update(g->l4_sum, all);
	return proto == IPPROTO_UDP && !sum ? 0xffff : sum;
}

/* The difference between the two ends must be one that edit.h can make. Not static: see learn(). */
__noinline enum reason learn_rewrite(const struct sighting *g, struct lesson *l)
{
	const struct flow_key *in, *out;
	__u64 addresses, ports = 0, l3;
	__u8 proto;
	__u32 nat;		/* not 0: something differs; in branches, the verifier would try them all */

	if (!g || !l)			/* never, but the verifier asks */
		return REASON_OTHER_PACKET;
	in = &g->key;
	out = &g->out;
	proto = proto_of(in);
	addresses = csum_diff32(in->saddr, out->saddr) + csum_diff32(in->daddr, out->daddr);
	nat = (in->saddr ^ out->saddr) | (in->daddr ^ out->daddr) |
	      (in->sport ^ out->sport) | (in->dport ^ out->dport);
	if (family_of(in) == 6) {
		for (int i = 0; i < 3; i++) {
			addresses += csum_diff32(g->in6.saddr[i], g->out6.saddr[i]) +
				     csum_diff32(g->in6.daddr[i], g->out6.daddr[i]);
			nat |= (g->in6.saddr[i] ^ g->out6.saddr[i]) | (g->in6.daddr[i] ^ g->out6.daddr[i]);
		}
	}
	l3 = addresses + csum_diff16(0x45 | (g->tos & 0xfc) << 8, 0x45 | (g->out_tos & 0xfc) << 8) + csum_diff16(1, 0);

	switch (proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		ports = csum_diff16(in->sport, out->sport) + csum_diff16(in->dport, out->dport);
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (in->dport != out->dport)
			return REASON_L4_REWRITTEN;
		ports = csum_diff16(in->sport, out->sport);
		break;
	case IPPROTO_DCCP:
	case IPPROTO_UDPLITE:	/* their checksums cover the addresses */
		if (nat)
			return REASON_L4_REWRITTEN;
		break;
	default:
		if (in->sport != out->sport || in->dport != out->dport)
			return REASON_L4_REWRITTEN;
	}
	if (proto == IPPROTO_ICMP)
		addresses = 0;		/* no pseudo header */
	l->rw.l3_step = l3_step(csum_fold(l3));
	l->rw.l4_delta = csum_fold(addresses + ports);
	if (l4_sum_at(proto) && g->out_sum != l4_sum_after(g, proto, csum_fold(addresses), l->rw.l4_delta))
		return REASON_PAYLOAD_CHANGED;

	l->rw.saddr = out->saddr;
	l->rw.daddr = out->daddr;
	l->rw.sport = out->sport;
	l->rw.dport = out->dport;
	l->rw.out6 = g->out6;
	l->rw.dscp = g->out_tos & 0xfc;
	l->flags |= SLOT_PAIRED | (nat ? SLOT_NAT : 0);
	return REASON_LEARNED;
}

/* Header fields that forwarding leaves alone. */
static __always_inline enum reason learn_header(const struct sighting *g, const struct frame *f)
{
	struct iphdr *ip = f->l3;
	__u8 ttl;

	if (f->family == 4) {
		if (ip->id != g->id)
			return REASON_OTHER_PACKET;
		if (ip->frag_off != g->frag)
			return REASON_HEADER_CHANGED;
		ttl = ip->ttl;
	} else {
		ttl = ((struct ipv6hdr *)f->l3)->hop_limit;
	}
	if ((__u8)(g->ttl - 1) != ttl)
		return REASON_TTL_STEP;
	if ((tos_of(f) ^ g->tos) & 3 || label_of(f) != g->label)
		return REASON_HEADER_CHANGED;
	return REASON_LEARNED;
}

/* The frame as it leaves. Not static: see learn(). */
__noinline enum reason learn_frame(struct __sk_buff *skb, struct sighting *g, struct lesson *l)
{
	struct frame f = { .port = skb->ifindex };
	enum reason reason;

	if (!g || !l)			/* never, but the verifier asks */
		return REASON_OTHER_PACKET;
	point(&f, skb);
	reason = parse_ethernet(&f);
	if (reason == REASON_NOT_HOST)
		return REASON_GROUP_NEIGHBOUR;
	if (!reason)
		reason = parse(&f, f.family);
	if (reason == REASON_TTL)
		return REASON_TTL_STEP;
	if (reason || f.family != family_of(&g->key) || f.proto != proto_of(&g->key))
		return REASON_ENCAPSULATED;
	take_key(&f);
	g->out = f.key;
	g->out6 = f.in6;
	g->out_sum = l4_sum(&f);
	g->out_tos = tos_of(&f);
	__builtin_memcpy(l->rw.mac, f.data, 12);
	return learn_header(g, &f);
}

/* Who decides on each packet beside routes, rules and conntrack. IPVS has a table, timeouts and a scheduler of
 * its own (ip_vs_in_hook()); a route's lightweight tunnel runs a program or rewrites (lwtunnel_input(),
 * lwtunnel_output(), lwtunnel_xmit()). */
static __always_inline enum reason other_forwarder(struct sk_buff *k)
{
	struct dst_entry *dst = (void *)(k->_skb_refdst & SKB_DST_PTRMASK);

	if (bpf_core_field_exists(k->ipvs_property) && BPF_CORE_READ_BITFIELD(k, ipvs_property))
		return REASON_IPVS;
	return dst && BPF_CORE_READ(dst, lwtstate) ? REASON_ROUTE_PROGRAM : REASON_LEARNED;
}

/* `lsp`: the packet gets labels from here, and may be so long for that; 0: it gets none.
 * The steps are functions of their own, and not static: the verifier looks at such a one once, for
 * any arguments, and does not follow each way through one of them through all the others. */
static __always_inline enum reason learn(struct __sk_buff *skb, struct sk_buff *k, struct sighting *g,
					 struct slot *s, __u32 lsp)
{
	__u32 iif = port_of(&g->key), oif = skb->ifindex;
	struct port *in = bpf_map_lookup_elem(&ports, &iif), *out = bpf_map_lookup_elem(&ports, &oif);
	struct lesson l = {};
	enum reason reason;
	int both;

	if (BPF_CORE_READ_BITFIELD(k, redirected))
		return REASON_REDIRECTED;
	if (k->sk)
		return REASON_LOCAL_SOCKET;
	if ((__s64)LOADED(bpf_ktime_get_ns() - g->time, -, SIGHTING_AGE) > 0)
		return REASON_STALE_SIGHTING;
	if ((__u32)k->skb_iif != iif || (skb->len != g->len && !g->gso))
		return REASON_OTHER_PACKET;
	/* in this order: a pause is set before the generation is raised */
	if (g->gen != ctl.gen || g->clock != ctl.clock || ctl.paused)
		return REASON_OLD_GENERATION;
	if (!in || !out || learn_upper(k, oif))
		return REASON_PORT_UNKNOWN;
	if (!lsp && out->flags & PORT_LOOKS_DEEPER)
		return REASON_QUEUE_LOOKS_DEEPER;
	if (!lsp && unwatched_out(k))
		return REASON_UNWATCHED;
	both = in->flags & PORT_XDP_RX && (lsp || out->flags & PORT_XDP_TX);
	l.rw.tx = lsp ? IMPOSER_TX : out->tx;	/* now: the kernel may give the element to another port */
	if (skb->vlan_present)
		return REASON_ENCAPSULATED;
	reason = learn_frame(skb, g, &l);
	if (reason == REASON_LEARNED)
		reason = other_forwarder(k);
	if (reason == REASON_LEARNED)	/* before conntrack: be-liberal is not for what stays slow */
		reason = policy_judge(k, g, s, oif);
	if (reason != REASON_LEARNED)
		return reason;
	l.lease = lease_length(g->bucket);
	reason = learn_conntrack(skb, g, s, &l);
	if (reason == REASON_LEARNED)
		reason = learn_rewrite(g, &l);
	if (reason != REASON_LEARNED)
		return reason;
	l.mtu = learn_mtu(k, family_of(&g->key));
	l.lease = learn_lifetime(k, family_of(&g->key), l.lease);
	if (lsp) {
		l.flags |= SLOT_LSP;
		l.mtu = lsp < l.mtu ? lsp : l.mtu;
	}
	if (both && (in->flags & PORT_WIRE || (!g->partial && !g->gso)) &&
	    !(skb->mark && out->flags & PORT_KEEPS_MARK && !lsp))
		l.flags |= SLOT_XDP;
	reason = slot_arm(s, skb, g, &l);
	if (reason == REASON_LEARNED && proto_of(&g->key) == IPPROTO_TCP)
		slot_pair(s, l.reverse_scale, l.reverse_zone);
	return reason;
}

#endif
