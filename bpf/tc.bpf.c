// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * tc.bpf.c: TC ingress repeats what XDP does not, or sights the packet before the
 * kernel has it; TC egress learns from what the kernel made of it.
 */
#include "verdict.h"
#include "parse.h"
#include "flow.h"
#include "edit.h"
#include "sight.h"
#include "learn.h"

enum { HEADERS = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct tcphdr), PACKET_HOST = 0 };

static __always_inline void point(struct frame *f, struct __sk_buff *skb)
{
	f->data = (void *)(long)skb->data;
	f->end = (void *)(long)skb->data_end;
	f->len = skb->len;
}

/* Pointers back after a helper moved the data; sizes were checked before. */
static __always_inline int again(struct frame *f, struct __sk_buff *skb)
{
	point(f, skb);
	f->eth = f->data;
	f->l3 = f->data + ETH_HLEN;
	f->l4 = f->l3 + (f->key.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	return within(f, f->l4, 0);
}

/* What XDP cannot see, then the frame itself. */
static __always_inline enum reason inspect(struct __sk_buff *skb, struct sk_buff *k, struct frame *f)
{
	if (skb->vlan_present)
		return REASON_VLAN_TAG;
	if (skb->pkt_type != PACKET_HOST)
		return REASON_NOT_HOST;
	if (bpf_core_enum_value_exists(enum skb_ext_id, SKB_EXT_SEC_PATH) &&
	    k->active_extensions & 1 << bpf_core_enum_value(enum skb_ext_id, SKB_EXT_SEC_PATH))
		return REASON_IPSEC;
	point(f, skb);
	if (f->data + HEADERS > f->end && f->len > f->end - f->data) {
		bpf_skb_pull_data(skb, f->len < HEADERS ? f->len : HEADERS);
		point(f, skb);
	}
	return parse(f);
}

/* Length of the packet, or of the longest one that it will be cut into (GSO). */
static __always_inline __u32 packet_len(const struct __sk_buff *skb, const struct frame *f)
{
	__u32 ip = f->key.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tcphdr *tcp = f->l4;

	if (!skb->gso_size)
		return f->l3_len;
	if (f->key.proto == IPPROTO_TCP && within(f, tcp, sizeof(*tcp)))
		return skb->gso_size + ip + tcp->doff * 4;
	return skb->gso_size + ip + sizeof(struct udphdr);
}

/* The L4 checksum may be partial, or the skb may carry a sum of the frame (COMPLETE):
 * the helper knows. IPv6 has no header checksum to cancel the addresses in a COMPLETE
 * sum, the L4 field does: so only a partial sum is told that this is a pseudo header. */
static __always_inline void edit_l4_sum_skb(struct __sk_buff *skb, struct sk_buff *k,
					    const struct frame *f, const struct rewrite *rw)
{
	__u64 pseudo = csum_diff32(f->key.saddr, rw->saddr) + csum_diff32(f->key.daddr, rw->daddr);
	__u64 flags = f->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u64 kind = BPF_F_PSEUDO_HDR;
	__u32 at = l4_sum_at(f->key.proto), ports;

	if (!at)
		return;
	at += f->l4 - f->data;
	ports = csum_fold(csum_diff16(f->key.sport, rw->sport) + csum_diff16(f->key.dport, rw->dport));
	if (f->key.family == 6) {
		for (int i = 0; i < 3; i++)
			pseudo += csum_diff32(f->in6.saddr[i], rw->out6.saddr[i]) +
				  csum_diff32(f->in6.daddr[i], rw->out6.daddr[i]);
		if (BPF_CORE_READ_BITFIELD(k, ip_summed) != CHECKSUM_PARTIAL)
			kind = 0;
	}
	if (f->key.proto != IPPROTO_ICMP)
		bpf_l4_csum_replace(skb, at, 0, csum_fold(pseudo), flags | kind);
	bpf_l4_csum_replace(skb, at, 0, ports, flags);
}

/* Repeat at TC: skips the stack, keeps qdisc, GSO and checksum offload. */
static __always_inline int repeat(struct __sk_buff *skb, struct sk_buff *k, struct frame *f,
				  struct slot *s, const struct place *at, struct tally *c)
{
	__u32 packets = skb->gso_segs > 1 ? skb->gso_segs : 1;
	__u32 oif = s->oif, mark = s->mark, priority = s->priority;
	struct rewrite rw = {};

	if (packet_len(skb, f) > s->mtu)
		return leave(c, REASON_OVER_MTU, NEXT);
	rewrite_copy(&rw, s);
	if (flow_torn(s, at))
		return leave(c, REASON_BUSY, NEXT);

	if (f->len > ETH_HLEN + f->l3_len && !skb->gso_size) {
		if (bpf_skb_change_tail(skb, ETH_HLEN + f->l3_len, 0))
			return leave(c, REASON_MALFORMED, NEXT);
		if (!again(f, skb))
			return leave(c, REASON_MALFORMED, NEXT);
	}
	flow_count(s, f, packets, f->l3_len);
	edit_headers(f, &rw);
	if (rw.flags & SLOT_NAT)
		edit_l4_sum_skb(skb, k, f, &rw);
	skb->mark = mark;
	skb->priority = priority;
	return leave(c, REASON_HIT, bpf_redirect(oif, 0));
}

/* Count the packet for its flow; from the threshold on it is due for learning. */
static __always_inline enum reason count(struct slot *s, const struct frame *f, enum reason reason)
{
	__u32 now = now_jiffies();

	if (s->state != SLOT_ARMED)
		s->count = before(s->seen + ctl.idle, now) ? 1 : s->count + 1;
	s->seen = now;
	if (f->key.proto == IPPROTO_TCP) {
		s->tcp_seq = f->tcp_end;
		s->tcp_ack = f->tcp_ack;
		s->tcp_wnd = f->tcp_wnd;
	}
	if (reason == REASON_BELOW_THRESHOLD && s->count >= ctl.threshold)
		return REASON_LEARNING;
	return reason;
}

SEC("tcx/ingress")
int shunt_ingress(struct __sk_buff *skb)
{
	struct tally *c = tally_of(STAGE_TC_INGRESS, skb->ifindex);
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sighting *g = sighting_of(k);
	struct frame f = { .key.port = skb->ifindex };
	__u32 gen = ctl.gen;
	enum reason reason;
	struct place at;
	struct slot *s;

	sight_forget(g, k);
	if (ctl.paused)
		return leave(c, REASON_PAUSED, NEXT);
	if (c && BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL)
		c->partial++;
	reason = inspect(skb, k, &f);
	if (reason == REASON_TCP_CLOSE || reason == REASON_TCP_SYN) {
		struct closing closing = closing_of(&f, reason);

		reason = flow_close(&closing);
		return leave(c, reason, reason == REASON_TCP_IMPLAUSIBLE ? DROP : NEXT);
	}
	if (reason)
		return leave(c, reason, NEXT);
	if (f.key.proto == IPPROTO_TCP && ctl.tcp_off)
		return leave(c, REASON_TCP_OFF, NEXT);

	s = flow_find(&f.key, &f.in6, &at);
	if (!s)
		s = flow_claim(&f.key, &f.in6, &at);
	if (!s)
		return leave(c, REASON_TABLE_FULL, NEXT);
	reason = flow_check(s, &f);
	switch (reason) {
	case REASON_HIT:
		return repeat(skb, k, &f, s, &at, c);
	case REASON_CLOSED:
		if (!before(now_jiffies(), s->lease))
			slot_close(s, SLOT_SEEN, s->lease);
		break;
	case REASON_BELOW_THRESHOLD:
	case REASON_LEARNING:
	case REASON_LEASE_ENDED:
	case REASON_OLD_GENERATION:
		reason = count(s, &f, reason);
		if (reason != REASON_BELOW_THRESHOLD)
			sight(g, skb, k, &f, &at, gen);
		break;
	default:	/* differs from what is armed: teaches nothing while the lease lasts */
		break;
	}
	s->why = reason;
	return leave(c, reason, NEXT);
}

SEC("tcx/egress")
int shunt_egress(struct __sk_buff *skb)
{
	struct tally *c = tally_of(STAGE_TC_EGRESS, skb->ifindex);
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sighting *g = sighting_of(k);

	if (!g || g->skb != (__u64)k)
		return leave(c, REASON_UNSIGHTED, NEXT);
	g->skb = 0;
	return leave(c, learn(skb, k, g), NEXT);
}

/* bpf2go emits an enum only if the object refers to it. */
const struct {
	enum abi abi;
	enum stage stage;
	enum reason reason;
	enum slot_state state;
	enum slot_flag slot_flag;
	enum port_flag port_flag;
	enum event_kind event_kind;
	struct event event;
	struct transmit transmit;
} *names __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
