/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * policy.h: may this flow be learned at all? The operator says so by connmark or by
 * exclusions; and rules that look at each packet (design rule 7) say no.
 *
 * The daemon compiles all of it into one short list, of which the first rule that fits
 * counts (internal/daemon/policy.go). It is asked once per lesson, so a hit costs nothing;
 * a change of policy raises the generation, and what was learned before proves itself anew.
 * Included by learn.h. Limit: POLICY_RULES; the daemon widens rules when there are more.
 */
#ifndef SHUNT_POLICY_H
#define SHUNT_POLICY_H

#include "maps.h"
#include "sight.h"

/* The daemon writes the bank that is not in use, then switches; TC egress reads. */
struct policies policy SEC(".data.policy");

enum { POLICY_SPENT = 0x100 };

/* By ifindex. The daemon writes, before it attaches to a port; TC egress reads. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct member);
} members SEC(".maps");

static __always_inline int address_fits(const __u32 *want, const __u32 *mask, const __u32 *head, __u32 last)
{
	return !((want[3] ^ last) & mask[3]) && !((want[0] ^ head[0]) & mask[0]) &&
	       !((want[1] ^ head[1]) & mask[1]) && !((want[2] ^ head[2]) & mask[2]);
}

static __always_inline int port_fits(const __u16 *range, __u16 wire)
{
	__u16 port = __builtin_bswap16(wire);

	return port >= range[0] && port <= range[1];
}

/* Rules are about what the ruleset sees, somewhere between the two ends: an address that
 * is rewritten on the way counts in both its forms. */
static __always_inline int rule_fits(const struct policy_rule *r, const struct sighting *g)
{
	if ((g->key.kind ^ r->kind) & r->kind_mask)
		return 0;
	if (!address_fits(r->saddr, r->smask, g->in6.saddr, g->key.saddr) &&
	    !address_fits(r->saddr, r->smask, g->out6.saddr, g->out.saddr))
		return 0;
	if (!address_fits(r->daddr, r->dmask, g->in6.daddr, g->key.daddr) &&
	    !address_fits(r->daddr, r->dmask, g->out6.daddr, g->out.daddr))
		return 0;
	return (port_fits(r->sport, g->key.sport) || port_fits(r->sport, g->out.sport)) &&
	       (port_fits(r->dport, g->key.dport) || port_fits(r->dport, g->out.dport));
}

/* A counter of nf_conntrack_acct (struct nf_conn_acct: packets and bytes of either direction), 0
 * where the connection has none, as nft_ct_get_eval() has it. Not static: see policy_search(). */
__noinline __u64 policy_count(__u64 connection, enum policy_counter counter, __u32 direction)
{
	struct nf_conn *ct = (void *)connection;
	__u64 n, sum = 0;
	struct nf_ct_ext *ext;
	__u8 at = 0;

	if (!connection || !bpf_core_type_exists(struct nf_conn) ||
	    !bpf_core_enum_value_exists(enum nf_ct_ext_id, NF_CT_EXT_ACCT))
		return 0;
	ext = BPF_CORE_READ(ct, ext);
	if (!ext)
		return 0;
	bpf_probe_read_kernel(&at, sizeof(at), (void *)ext + bpf_core_field_offset(struct nf_ct_ext, offset) +
			      bpf_core_enum_value(enum nf_ct_ext_id, NF_CT_EXT_ACCT));
	if (!at)
		return 0;
	for (__u32 d = 0; d < 2; d++) {
		if (direction != 2 && direction != d)
			continue;
		n = 0;
		bpf_probe_read_kernel(&n, sizeof(n), (void *)ext + at + d * 16 + (counter == POLICY_BYTES ? 8 : 0));
		sum += n;
	}
	return sum;
}

/* The first rule that fits; LEARNED if none says no. With POLICY_SPENT, one would have fitted that
 * has a bound, which the connection has passed: conntrack's counters only grow. Not static: the verifier looks at it
 * once, and not again for each way that leads here. A bank that is switched meanwhile is
 * followed by a new generation, before which nothing that was sighted is learned. */
__noinline __u32 policy_search(const struct sighting *g, __u32 groups_in, __u32 groups_out, __u32 state, __u64 ct)
{
	const struct policy_bank *b = &policy.banks[OUR(policy.bank) & 1];
	__u32 reason = REASON_LEARNED, spent = 0;
	struct counting it;
	int *n;

	if (!g)		/* never, but the verifier asks */
		return REASON_EXCLUDED;
	bpf_iter_num_new(&it, 0, b->rules);
	while ((n = bpf_iter_num_next(&it))) {
		const struct policy_rule *r = &b->rule[(__u32)*n % POLICY_RULES];

		forget(g);	/* what was read of it: the stack has no room to keep it */
		if ((!r->in || r->in & groups_in) && (!r->out || r->out & groups_out) &&
		    r->states & state && rule_fits(r, g)) {
			if (r->counter && policy_count(ct, r->counter, r->direction) > r->until) {
				spent = POLICY_SPENT;
				continue;
			}
			if (r->reason != REASON_HIT)
				reason = r->reason;
			break;
		}
	}
	bpf_iter_num_destroy(&it);
	return reason | spent;
}

/* The bound may have been passed by a packet on another CPU, behind the rule's back: the packet at hand
 * is believed if one that was judged before it was sighted had passed it, too. A sighting is
 * younger than two jiffies (SIGHTING_AGE). */
static __always_inline enum reason policy_settle(struct slot *s, __u32 found)
{
	__u16 now = now_jiffies() | 1;
	enum reason reason = found & ~POLICY_SPENT;

	if (reason != REASON_LEARNED) {
		s->spent = 0;
		return reason;
	}
	if (!(found & POLICY_SPENT))
		return reason;
	if (!s->spent)
		s->spent = now;
	return (__u16)(now - s->spent) > 2 ? REASON_LEARNED : REASON_PER_PACKET_RULE;
}

static __always_inline enum reason policy_judge(struct sk_buff *k, const struct sighting *g, struct slot *s, __u32 oif)
{
	__u32 bank = OUR(policy.bank) & 1, iif = port_of(&g->key);
	__u32 info = k->_nfct & NFCT_INFOMASK, state = POLICY_UNTRACKED;
	struct nf_conn *ct = (void *)(k->_nfct & NFCT_PTRMASK);
	struct policy_bank *b = &policy.banks[bank];
	struct member *in, *out;

	if (b->marked && (!ct || !bpf_core_field_exists(ct->mark) || (BPF_CORE_READ(ct, mark) & b->mask) != b->value))
		return REASON_NOT_MARKED;
	if (OUR(policy.unread))
		return REASON_PER_PACKET_RULE;
	if (!b->rules)
		return REASON_LEARNED;
	in = bpf_map_lookup_elem(&members, &iif);
	out = bpf_map_lookup_elem(&members, &oif);
	if (!in || !out)
		return REASON_PORT_UNKNOWN;
	if (ct)
		state = info == IP_CT_ESTABLISHED || info == IP_CT_IS_REPLY ? POLICY_ESTABLISHED : POLICY_NEW;
	return policy_settle(s, policy_search(g, in->groups[bank], out->groups[bank], state, (__u64)ct));
}

static __always_inline int policy_refuses(enum reason reason)
{
	return reason == REASON_NOT_MARKED || reason == REASON_EXCLUDED || reason == REASON_PER_PACKET_RULE;
}

/* What was learned while policy said yes is forgotten, and the flow's packets stay due. */
static __always_inline void policy_disarm(struct slot *s, const struct sighting *g)
{
	if (s->state != SLOT_ARMED || !flow_lock(s, OUR(s->seq)))
		return;
	if (s->state == SLOT_ARMED && same_flow(s, &g->key, &g->in6)) {
		s->state = SLOT_SEEN;
		s->count = ctl.threshold;
		s->seen = now_jiffies();
	}
	flow_unlock(s);
}

#endif
