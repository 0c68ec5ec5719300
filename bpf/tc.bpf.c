// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * tc.bpf.c: TC ingress repeats what XDP does not, or sights the packet before the
 * kernel has it; TC egress learns from what the kernel made of it.
 */
#include "verdict.h"
#include "parse.h"
#define LOAD_CONTEXT struct __sk_buff
#define LOAD_BYTES bpf_skb_load_bytes
#define CT_LOOKUP bpf_skb_ct_lookup
#include "ends.h"
#include "skb.h"
#include "edit.h"
#include "sight.h"
#include "others.h"
#include "learn.h"
#include "lsp.h"
#include "sample.h"
#include "meter.h"

enum {
	HEADERS6 = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct tcphdr),
	HEADERS4 = ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr),
	PACKET_HOST = 0,
};

/* What XDP cannot see, then the frame's Ethernet header. */
static __always_inline enum reason inspect(struct __sk_buff *skb, struct sk_buff *k, struct frame *f)
{
	__u32 headers;

	if (skb->pkt_type != PACKET_HOST)
		return REASON_NOT_HOST;
	if (bpf_core_enum_value_exists(enum skb_ext_id, SKB_EXT_SEC_PATH) &&
	    k->active_extensions & 1 << bpf_core_enum_value(enum skb_ext_id, SKB_EXT_SEC_PATH))
		return REASON_IPSEC;
	point(f, skb);
	/* no more than is needed: of what a TCP stack sends the headers alone are here, and to pull
	 * copies them, since the stack keeps the packet too */
	headers = skb->protocol == wire16(ETH_P_IPV6) ? HEADERS6 : HEADERS4;
	if (f->end - f->data < headers && f->end - f->data < f->len) {
		bpf_skb_pull_data(skb, f->len < headers ? f->len : headers);
		point(f, skb);
	}
	return parse_ethernet(f);
}

/* Length of the packet, or of the longest one that it will be cut into (GSO). */
static __always_inline __u32 packet_len(const struct __sk_buff *skb, const struct frame *f)
{
	__u32 ip = f->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tcphdr *tcp = f->l4;

	if (!skb->gso_size)
		return f->l3_len;
	if (f->proto == IPPROTO_TCP && within(f, tcp, sizeof(*tcp)))
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
	__u64 flags = f->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u64 kind = BPF_F_PSEUDO_HDR;
	__u32 at = l4_sum_at(f->proto), ports;

	if (!at)
		return;
	at += f->l4 - f->data;
	ports = csum_fold(csum_diff16(f->key.sport, rw->sport) + csum_diff16(f->key.dport, rw->dport));
	if (f->family == 6) {
		for (int i = 0; i < 3; i++)
			pseudo += csum_diff32(f->in6.saddr[i], rw->out6.saddr[i]) +
				  csum_diff32(f->in6.daddr[i], rw->out6.daddr[i]);
		if (BPF_CORE_READ_BITFIELD(k, ip_summed) != CHECKSUM_PARTIAL)
			kind = 0;
	}
	if (f->proto != IPPROTO_ICMP)
		bpf_l4_csum_replace(skb, at, 0, csum_fold(pseudo), flags | kind);
	bpf_l4_csum_replace(skb, at, 0, ports, flags);
}

/* Is it over its rate? Where XDP marks nothing all that it passed is judged again here, for
 * the same reasons: once is enough. */
static __always_inline int spent(enum reason reason, const int after_xdp)
{
	return is_policed(reason) && !(after_xdp && ctl.no_marks) && meter_spent(reason);
}

/* To the kernel, for what the packet is or for want of a slot; or over its rate. */
static __always_inline int pass(struct tally *c, enum reason reason, const int after_xdp)
{
	if (spent(reason, after_xdp))
		return leave(c, REASON_POLICED, DROP);
	return leave(c, reason, NEXT);
}

/* Repeat at TC: skips the stack, keeps qdisc, GSO and checksum offload. */
static __always_inline int repeat(struct __sk_buff *skb, struct sk_buff *k, struct frame *f,
				  struct slot *s, const struct place *at, struct tally *c, const int counted)
{
	__u32 packets = skb->gso_segs > 1 ? skb->gso_segs : 1;
	__u32 oif = s->oif, mark = s->mark, priority = s->priority;
	struct rewrite rw;
	__u16 before, after;

	if (packet_len(skb, f) > s->mtu) {
		flow_evidence(s, f);
		s->why = REASON_OVER_MTU;
		return pass(c, REASON_OVER_MTU, counted);
	}
	rewrite_copy(&rw, s, f->family);
	if (flow_torn(s, at))
		return leave(c, REASON_BUSY, NEXT);

	if (trailer_of(f) && !skb->gso_size) {
		if (bpf_skb_change_tail(skb, ETH_HLEN + f->l3_len, 0))
			return leave(c, REASON_MALFORMED, NEXT);
		if (!again(f, skb))
			return leave(c, REASON_RUNT, NEXT);
	}
	flow_count(s, f, packets, f->l3_len);
	before = *(__u16 *)f->l3;
	edit(f, &rw, 0);
	after = *(__u16 *)f->l3;
	if (rw.flags & SLOT_NAT)
		edit_l4_sum_skb(skb, k, f, &rw);
	/* IPv4's header sums to nothing; IPv6's traffic class and hop limit are in a COMPLETE sum */
	if (f->family == 6)
		bpf_csum_update(skb, csum_fold(csum_diff16(before, after) + csum_diff16(0x100, 0)));
	skb->mark = mark;
	skb->priority = priority;
	return leave(c, REASON_HIT, bpf_redirect(oif, 0));
}

static __always_inline int marked(const struct __sk_buff *skb)
{
	struct mark *m = (void *)(long)skb->data_meta;

	return (void *)(m + 1) <= (void *)(long)skb->data && m->magic == MARK;
}

/* For explain. Not static, as slot_sweep() is not. */
__noinline int sample_aside(struct __sk_buff *skb, __u32 reason)
{
	sample_frame((void *)(long)skb->data, (void *)(long)skb->data_end, skb->ifindex,
		     skb->vlan_present ? skb->vlan_tci : 0, reason);
	return 0;
}

/* Out by a reason that no slot remembers. */
static __always_inline int tell(struct __sk_buff *skb, struct tally *c, enum reason reason)
{
	leave(c, reason, NEXT);
	if (reason != REASON_TCP_IMPLAUSIBLE)	/* close_odd() has */
		sample_aside(skb, reason);
	return reason == REASON_POLICED || reason == REASON_TCP_IMPLAUSIBLE ? DROP : NEXT;
}

/* The same, or over its rate. */
static __always_inline int refused(struct __sk_buff *skb, struct tally *c, enum reason reason, const int after_xdp)
{
	return tell(skb, c, spent(reason, after_xdp) ? REASON_POLICED : reason);
}

/* What parse.h found a reason in. XDP may have closed by it already, but did not read what is in fragments. */
static __always_inline int refuse(struct __sk_buff *skb, struct tally *c, struct frame *f, enum reason reason,
				  const int counted)
{
	if (is_odd(reason))
		return tell(skb, c, spent(reason, counted) ? REASON_POLICED : close_odd(skb, skb->ifindex, skb->len, reason));
	if (reason != REASON_TCP_CLOSE && reason != REASON_TCP_SYN)
		return refused(skb, c, reason, counted);
	if (spent(reason, counted))
		return leave(c, REASON_POLICED, DROP);
	reason = close_by(skb, f, reason);
	return leave(c, reason, reason == REASON_TCP_IMPLAUSIBLE ? DROP : NEXT);
}

/* `family` is a constant: the two copies of this function do without the other's work.
 * `counted`: XDP did what flow_slow() does, but for frames in fragments, which it did not read. */
static __always_inline int judge(struct __sk_buff *skb, struct sk_buff *k, struct frame *f, struct sighting *g,
				 struct tally *c, const __u8 family, const int counted)
{
	enum reason reason;
	struct place at;
	struct slot *s;
	__u32 now;

	reason = parse(f, family);
	if (rarely(reason))
		return refuse(skb, c, f, reason, counted);
	if (!take_frame(f, skb))
		return leave(c, REASON_RUNT, NEXT);
	if (ctl.tcp_off && f->proto == IPPROTO_TCP)
		return leave(c, REASON_TCP_OFF, NEXT);

	s = flow_find(&f->key, &f->in6, &at);
	if (rarely(!s)) {
		struct first first = { .key = f->key, .in6 = f->in6 };

		reason = flow_admit(&first);
		if (reason) {
			sample_keep(&first.key, &first.in6, about(reason, 0, 0));
			/* the verifier knows nothing of it */
			return pass(c, reason == REASON_SOURCE_FULL ? REASON_SOURCE_FULL : REASON_TABLE_FULL, counted);
		}
		at = first.at;
		s = slot_at(at.bucket, at.way);
	}
	now = now_jiffies();
	if (!counted && mostly(flow_young(s, now))) {
		flow_one_more(s, f, now);
		return leave(c, REASON_BELOW_THRESHOLD, NEXT);
	}
	if (counted && !ctl.no_marks && f->data + f->len <= f->end)
		s->taken += skb->gso_segs > 1 ? skb->gso_segs : 1;
	reason = flow_check(s, f);
	if (!reason)
		return repeat(skb, k, f, s, &at, c, counted);
	if (!counted || ctl.no_marks || f->data + f->len > f->end)
		reason = flow_slow(s, f, reason);
	if (is_due(reason)) {
		if (unwatched_in(k))
			s->why = reason = REASON_UNWATCHED;
		else
			sight(g, skb, k, f, &at);
		if (s->flags & SLOT_CT && f->proto == IPPROTO_TCP)
			slot_unsettled(s);
	}
	return leave(c, reason, NEXT);
}

/* In a pause. Not static, as slot_sweep() is not. */
__noinline int watch(struct __sk_buff *skb)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct frame f = { .port = skb->ifindex };
	struct place at;
	struct slot *s;

	if (skb->vlan_present || inspect(skb, k, &f) || parse(&f, f.family) || !take_frame(&f, skb))
		return 0;
	s = flow_find(&f.key, &f.in6, &at);
	if (s)
		flow_watch(s, &f);
	return 0;
}

static __always_inline void count_partial(struct tally *c, const struct __sk_buff *skb)
{
	c->partial++;
	if (skb->gso_size)
		c->merged++;
}

/* `after_xdp`: the XDP program saw the packet first and marked it if something is due.
 * The rest leaves at once (shunt_after_xdp). */
static __always_inline int ingress(struct __sk_buff *skb, struct sighting *g, struct tally *c, const int after_xdp)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	enum reason reason;
	struct frame f;

	if (ctl.paused) {
		if (!after_xdp)
			watch(skb);
		return leave(c, REASON_PAUSED, NEXT);
	}
	if (BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL)
		count_partial(c, skb);
	if (skb->vlan_present)
		return refused(skb, c, REASON_VLAN_TAG, after_xdp);
	f.port = skb->ifindex;
	reason = inspect(skb, k, &f);
	if (reason)
		return refused(skb, c, reason, after_xdp);
	if (f.family == 4)
		return judge(skb, k, &f, g, c, 4, after_xdp);
	return judge(skb, k, &f, g, c, 6, after_xdp);
}

SEC("tcx/ingress")
int shunt_ingress(struct __sk_buff *skb)
{
	__u64 cpu = this_cpu();
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sighting *g = sighting_of(cpu, k);

	sight_forget(g, k);
	return ingress(skb, g, tally_of(cpu, STAGE_TC_INGRESS, skb->ifindex), 0);
}

/* A function of its own, whose registers and stack those that leave at once do without. */
static __noinline int ingress_marked(struct __sk_buff *skb, struct sighting *g, struct tally *c)
{
	return ingress(skb, g, c, 1);
}

SEC("tcx/ingress")
int shunt_after_xdp(struct __sk_buff *skb)
{
	__u64 cpu = this_cpu();
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sighting *g = sighting_of(cpu, k);
	struct tally *c = tally_of(cpu, STAGE_TC_INGRESS, skb->ifindex);

	sight_forget(g, k);
	if (rarely(ctl.paused | ctl.no_marks || skb->vlan_present || marked(skb)))
		return ingress_marked(skb, g, c);
	if (BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL)
		count_partial(c, skb);
	return leave(c, REASON_JUDGED, NEXT);
}

/* Not static, as slot_sweep() is not. */
__noinline int egress_sighted(struct __sk_buff *skb, struct sighting *g, struct tally *c, __u32 lsp)
{
	enum reason reason;
	struct slot *s;

	if (!g || !c)		/* never, but the verifier asks */
		return NEXT;
	s = slot_at(g->bucket, g->way);
	reason = learn(skb, bpf_cast_to_kern_ctx(skb), g, s, lsp);
	if (reason == REASON_SLOT_LOST)
		sample_keep(&g->key, &g->in6, about(reason, 0, 0));
	else if (reason > REASON_CHANGED && same_flow(s, &g->key, &g->in6))
		s->why = reason;	/* for explain */
	if (policy_refuses(reason))
		policy_disarm(s, g);
	return leave(c, reason, NEXT);
}

/* Some packets get labels: those go to the imposer, which is what XDP repeats for their flow. */
static __always_inline int egress_to_lsp(struct __sk_buff *skb, struct sk_buff *k, struct sighting *g, struct tally *c,
					 __u64 cpu)
{
	__u32 lsp = lsp_of(skb);
	int verdict = NEXT;

	if (g->skb == (__u64)k) {
		g->skb = 0;
		verdict = egress_sighted(skb, g, c, lsp);
	} else {
		leave(c, REASON_UNSIGHTED, NEXT);
	}
	if (!lsp)
		return verdict;
	/* a flow's packets queue behind one another, whichever way they come (skb_tx_hash(), veth_select_rxq()) */
	if (!own_socket(k))
		skb->queue_mapping = cpu + 1;
	return bpf_redirect(ctl.imposer, 0);
}

SEC("tcx/egress")
int shunt_egress(struct __sk_buff *skb)
{
	__u64 cpu = this_cpu();
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sighting *g = sighting_of(cpu, k);
	struct tally *c = tally_of(cpu, STAGE_TC_EGRESS, skb->ifindex);

	if (rarely(ctl.imposer))
		return egress_to_lsp(skb, k, g, c, cpu);
	if (mostly(g->skb != (__u64)k))
		return leave(c, REASON_UNSIGHTED, NEXT);
	g->skb = 0;
	return egress_sighted(skb, g, c, 0);
}

/* bpf2go emits an enum only if the object refers to it. */
const struct {
	enum abi abi;
	enum loaded loaded;
	enum kind kind;
	enum stage stage;
	enum reason reason;
	enum slot_state state;
	enum slot_flag slot_flag;
	enum port_flag port_flag;
	enum event_kind event_kind;
	enum mark_magic mark_magic;
	struct event event;
	struct difference difference;
	struct notebook notebook;
	struct transmit transmit;
	enum policy_size policy_size;
	enum policy_state policy_state;
} *names __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
