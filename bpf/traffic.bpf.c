// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * traffic.bpf.c: the lab's frame generator and sink, and the empty redirect that
 * benchmarks take for the limit. Nothing here is part of the router.
 *
 * A generated frame is known by a mark of 10 bytes that begins its L4 payload:
 * 28 bits of magic, 20 bits of flow, 32 bits of sequence. Headers may be rewritten
 * on the way, so the sink looks at nothing else to tell flows apart. The rest of the
 * payload is a fixed pattern: 64-bit words, word n being (n + 1) * PATTERN.
 *
 * Between Ethernet and IP there may be MPLS labels (RFC 3032): two, or one, the same for all flows or
 * one for each. A sink takes in frames with the one label it was told, or those without any,
 * and calls others foreign.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum traffic {
	TRAFFIC_HEAD = 96,	/* room for the longest headers and mark, in whole words */
	TRAFFIC_MARK = 10,	/* bytes of the mark */
	TRAFFIC_MAGIC_A = 0x51f7,
	TRAFFIC_MAGIC_B = 0xa36,
	TRAFFIC_FLOWS = 1 << 20,
	TRAFFIC_PORT_BITS = 14,	/* flows that differ in their port alone */
	TRAFFIC_FRAME = 2048,	/* frames below this are verified; a power of two */
};

/* A type that nothing has is left out of BTF, and Go would not get the constants. */
const volatile enum traffic traffic_constants = TRAFFIC_HEAD;

#define PATTERN 0x9e3779b97f4a7c15ull

/* Frame bytes as words. Never packed: BPF would then store them one by one. */
typedef __u16 __attribute__((may_alias)) word16;
typedef __u64 __attribute__((may_alias)) word64;
#define AT16(p) (*(word16 *)(p))
#define AT64(p) (*(word64 *)(p))

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} traffic_out SEC(".maps");

/* ---------------------------------------------------------------- generator */

/*
 * What to send. It is read-only when the program is loaded, so the verifier cuts
 * away what a run does not need. Offsets are from the start of the frame; an offset
 * of 0 means that there is no such field. The bytes of the template are zero wherever a
 * frame differs, and the sums are those of all other bytes.
 */
struct frame_template {
	__u64 bytes[TRAFFIC_HEAD / 8];
	__u32 head;		/* bytes of it that are written, a multiple of 8 */
	__u32 flows;
	__u32 step;		/* to the next flow, coprime with flows */
	__u32 port_at, port;	/* field and first value of what tells flows apart: port or ICMP id */
	__u32 group_at, group;	/* and of the other port, one per 2^TRAFFIC_PORT_BITS flows */
	__u32 addr_at, addr;	/* and of the last 16 bits of an address, likewise */
	__u32 addr_in_l4;	/* the L4 checksum covers addresses */
	__u32 ip_sum_at, ip_sum;
	__u32 l4_sum_at, l4_sum;
	__u32 no_zero;		/* UDP: a sum of 0 is sent as 0xffff */
	__u32 mark_at;
	__u32 id_at;		/* IPv4 id: the port's number once more, for fragments */
	__u32 seq_at;		/* TCP sequence number: all over its space */
	__u32 stay;		/* frames of a flow in a row; 0: one */
	__u32 room;		/* bytes in front of the frame that are not sent: headroom for the router */
	__u32 label_at, entry;	/* label stack entry, and that of flow 0: the label rises by one with the flow */
	__u32 first;		/* number of the first flow: others send those before it */
};

const volatile struct frame_template traffic_template = {};

/* Where the generator is: it goes on there in the next call. */
struct cursor {
	__u64 left;		/* frames that may still be sent */
	__u32 flow;
	__u32 seq;		/* of all flows from `flow` on; the ones before have sent it */
	__u32 stayed;		/* frames of this flow that were sent in this row */
	__u32 pad;
};

enum { SWEEP_SEQ = 0x9e3779b1, SWEEP_FLOW = 0x85ebca6b };

struct cursor traffic_cursor = {};

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

SEC("xdp")
int traffic_generate(struct xdp_md *ctx)
{
	const volatile struct frame_template *t = &traffic_template;
	struct cursor *c = &traffic_cursor;

	if (t->room && bpf_xdp_adjust_head(ctx, t->room))
		return XDP_DROP;

	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 head = t->head, flows = t->flows, mark_at = t->mark_at;
	__u32 now = c->flow, flow = now, seq = c->seq;
	__u64 l4 = t->l4_sum;

	if (!c->left || data + head > end || mark_at > TRAFFIC_HEAD - TRAFFIC_MARK)
		return XDP_DROP;
	c->left--;
	if (t->stay && ++c->stayed < t->stay)
		goto write;
	c->stayed = 0;
	flow += t->step;
	if (flow >= flows)
		flow -= flows;
	if (!flow)	/* all of them once */
		c->seq = seq + 1;
	c->flow = flow;
	flow = now;
write:
	flow += t->first;

	/* The page comes back as the router left it: write all of it. */
#pragma unroll
	for (int i = 0; i < TRAFFIC_HEAD / 8; i++)
		if (i * 8 < head)
			AT64(data + i * 8) = t->bytes[i];

	__u16 port = bpf_htons(t->port + (flow & ((1 << TRAFFIC_PORT_BITS) - 1)));

	AT16(data + t->port_at) = port;
	l4 += port;
	if (t->group_at) {
		__u16 group = bpf_htons(t->group + (flow >> TRAFFIC_PORT_BITS));

		AT16(data + t->group_at) = group;
		l4 += group;
	}
	__u16 addr = bpf_htons(t->addr + (flow >> TRAFFIC_PORT_BITS));

	AT16(data + t->addr_at) = addr;
	if (t->addr_in_l4)
		l4 += addr;
	if (t->id_at)
		AT16(data + t->id_at) = port;
	if (t->ip_sum_at)
		AT16(data + t->ip_sum_at) = ~fold(t->ip_sum + addr + (t->id_at ? port : 0));
	if (t->seq_at) {
		__u32 any = seq * SWEEP_SEQ + flow * SWEEP_FLOW;

		AT16(data + t->seq_at) = any;
		AT16(data + t->seq_at + 2) = any >> 16;
		l4 += (any & 0xffff) + (any >> 16);
	}

	if (t->label_at) {
		__u32 entry = t->entry + (flow << 12);

		AT16(data + t->label_at) = bpf_htons(entry >> 16);
		AT16(data + t->label_at + 2) = bpf_htons(entry & 0xffff);
	}

	__u64 mark = (__u64)(TRAFFIC_MAGIC_B << 20 | flow) << 32 | seq;

	AT16(data + mark_at) = TRAFFIC_MAGIC_A;
	AT64(data + mark_at + 2) = mark;
	l4 += TRAFFIC_MAGIC_A + (mark & 0xffffffff) + (mark >> 32);

	__u16 sum = ~fold(l4);

	if (t->no_zero && !sum)
		sum = 0xffff;
	AT16(data + t->l4_sum_at) = sum;
	return bpf_redirect_map(&traffic_out, 0, 0);
}

/* --------------------------------------------------------------------- sink */

/* Of one CPU. `epoch` is that of the last reset: a row of an older one counts as zero. */
struct totals {
	__u64 frames, bytes;	/* marked ones, Ethernet without FCS */
	__u64 foreign;		/* others, handed on to the stack */
	__u64 flows;		/* flows met for the first time */
	__u64 lost;		/* sequence numbers jumped over and not seen later: a signed sum */
	__u64 reordered;	/* came after a later one */
	__u64 duplicates;
	__u64 latest;		/* how many numbers the most reordered one was behind */
	__u64 sampled;		/* verified */
	__u64 bad_length, bad_ip, bad_l4, bad_payload;
	__u32 epoch;
	__u32 until;		/* frames until the next one is verified */
};

/* `seen` has a bit for each of the 64 numbers up to `last`. */
struct flow_record {
	__u64 packets;
	__u64 seen;
	__u32 last;
	__u32 epoch;
	__u32 lost;
	__u32 reordered;
	__u32 duplicates;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} traffic_totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TRAFFIC_FLOWS);
	__type(key, __u32);
	__type(value, struct flow_record);
} traffic_flows SEC(".maps");

struct scratch {
	__u8 frame[TRAFFIC_FRAME + 64];	/* and zeros behind it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} traffic_scratch SEC(".maps");

const volatile __u32 traffic_sample = 64;	/* one frame in so many is verified */
const volatile __u32 traffic_label = 0;		/* that frames must have; 0: none */
const volatile __u32 traffic_labels = 0;	/* that is of flow 0, and falls by one with the flow */
__u32 traffic_epoch = 1;

/* Where IP begins: a constant to the verifier, as the label is. */
static __always_inline __u32 ip_at(void)
{
	return ETH_HLEN + (traffic_label ? 4 : 0);
}

static __always_inline __u32 entry_in(__u8 *data)
{
	return bpf_ntohs(AT16(data + 14)) << 16 | bpf_ntohs(AT16(data + 16));
}

/* The IP version of a frame that has the wanted label, and that at the bottom of its stack. */
static __always_inline __u8 version(__u8 *data)
{
	__u16 type = AT16(data + 12);

	if (traffic_label) {
		__u32 entry = entry_in(data);

		if (type != bpf_htons(ETH_P_MPLS_UC) || !(entry & 0x100) || (!traffic_labels && entry >> 12 != traffic_label))
			return 0;
		return data[ETH_HLEN + 4] >> 4;
	}
	return type == bpf_htons(ETH_P_IP) ? 4 : type == bpf_htons(ETH_P_IPV6) ? 6 : 0;
}

/* Its protocol, and where the mark is; 0 if the frame is not a marked one. */
static __always_inline __u32 marked(__u8 *data, __u8 *end, __u8 *proto)
{
	__u32 ip = ip_at(), l4, mark;

	if (data + ip + sizeof(struct ipv6hdr) > end)
		return 0;
	switch (version(data)) {
	case 4:
		if (data[ip] != 0x45)
			return 0;
		*proto = data[ip + 9];
		l4 = ip + sizeof(struct iphdr);
		break;
	case 6:
		*proto = data[ip + 6];
		l4 = ip + sizeof(struct ipv6hdr);
		break;
	default:
		return 0;
	}
	switch (*proto) {
	case IPPROTO_TCP:
		mark = l4 + 20;
		break;
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		mark = l4 + 8;
		break;
	default:
		return 0;
	}
	if (data + mark + TRAFFIC_MARK > end || AT16(data + mark) != TRAFFIC_MAGIC_A ||
	    AT64(data + mark + 2) >> 52 != TRAFFIC_MAGIC_B)
		return 0;
	return mark;
}

/* Loss, order and duplicates of one flow, as RFC 4737 and RFC 5560 count them. */
static __always_inline void follow(struct flow_record *f, struct totals *t, __u32 seq)
{
	if (f->epoch != traffic_epoch) {
		*f = (struct flow_record){ .epoch = traffic_epoch, .packets = 1, .seen = 1, .last = seq };
		t->flows++;
		return;
	}
	f->packets++;

	__s32 ahead = seq - f->last;

	if (ahead > 0) {
		f->seen = ahead < 64 ? f->seen << ahead | 1 : 1;
		f->last = seq;
		f->lost += ahead - 1;
		t->lost += ahead - 1;
		return;
	}
	__u32 behind = -ahead;

	if (behind < 64 && f->seen >> behind & 1) {
		f->duplicates++;
		t->duplicates++;
		return;
	}
	if (behind < 64)
		f->seen |= 1ull << behind;
	f->reordered++;
	t->reordered++;
	if (behind > t->latest)
		t->latest = behind;
	/* It had been taken for lost, unless it comes before the first one met. */
	if (f->lost) {
		f->lost--;
		t->lost--;
	}
}

/* Ones' complement sum of bytes [from, to) of the frame, which end in zeros. */
static __always_inline __u64 sum(struct scratch *s, __u32 from, __u32 to, __u64 seed)
{
	__u32 len = (to - from + 3) & (TRAFFIC_FRAME - 4);

	return seed + (__u32)bpf_csum_diff(0, 0, (void *)&s->frame[from], len, 0);
}

/* Is the word at `at`, as far as the frame goes, another than `want`? Not static: the verifier looks at such a
 * function once, for any arguments, and not for each word, protocol and place of the mark. */
__noinline int differs(const struct scratch *s, __u32 at, __u32 len, __u64 want)
{
	__u64 differ;

	if (!s || at >= TRAFFIC_FRAME || at >= len)
		return 0;
	differ = AT64(&s->frame[at]) ^ want;
	if (at + 8 > len)
		differ &= (1ull << (len - at) * 8) - 1;
	return differ != 0;
}

/* The whole frame is what the generator would have sent, but for what a router may change. Not static, as
 * differs() is not. */
__noinline int verify(struct xdp_md *ctx, struct totals *t, __u32 mark, __u8 proto)
{
	__u32 zero = 0, len = bpf_xdp_get_buff_len(ctx), ip = ip_at(), l4, ip_len;
	struct scratch *s = bpf_map_lookup_elem(&traffic_scratch, &zero);
	__u64 l4_sum;

	if (!t || !s || len < 60 || len >= TRAFFIC_FRAME)
		return 0;
	/* Tells the verifier what the compiler knows: see above. */
	asm volatile("%0 &= %1" : "+r"(len) : "i"(TRAFFIC_FRAME - 1));
	if (!len || bpf_xdp_load_bytes(ctx, 0, s->frame, len))
		return 0;
	t->sampled++;
	AT64(&s->frame[len]) = 0;
	l4_sum = bpf_htons(proto);
	if (s->frame[ip] >> 4 == 4) {
		l4 = ip + sizeof(struct iphdr);
		ip_len = bpf_ntohs(AT16(&s->frame[ip + 2]));
		if (fold(sum(s, ip, l4, 0)) != 0xffff)
			t->bad_ip++;
		l4_sum = sum(s, l4 - 8, l4, l4_sum);
	} else {
		l4 = ip + sizeof(struct ipv6hdr);
		ip_len = bpf_ntohs(AT16(&s->frame[ip + 4])) + sizeof(struct ipv6hdr);
		l4_sum = sum(s, l4 - 32, l4, l4_sum);
	}
	if (ip + ip_len != len ||
	    (proto == IPPROTO_UDP && bpf_ntohs(AT16(&s->frame[l4 + 4])) != len - l4)) {
		t->bad_length++;
		return 0;
	}
	/* ICMPv4 has no pseudo header (RFC 792); UDP over IPv4 may have no sum (RFC 768). */
	l4_sum = proto == IPPROTO_ICMP ? 0 : l4_sum + bpf_htons(len - l4);
	if (fold(sum(s, l4, len, l4_sum)) != 0xffff &&
	    !(proto == IPPROTO_UDP && l4 == ip + 20 && AT16(&s->frame[l4 + 6]) == 0))
		t->bad_l4++;

	__u64 want = 0;
	__u32 at = mark + TRAFFIC_MARK;

	for (int i = 0; i < TRAFFIC_FRAME / 8; i++, at += 8) {
		if (at >= len)
			break;
		want += PATTERN;
		if (differs(s, at, len, want)) {
			t->bad_payload++;
			break;
		}
	}
	return 0;
}

SEC("xdp.frags")
int traffic_sink(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, proto = 0;
	__u32 zero = 0, mark = marked(data, end, &proto), id;
	struct totals *t = bpf_map_lookup_elem(&traffic_totals, &zero);
	struct flow_record *f;
	__u64 word;

	if (!t)
		return XDP_PASS;
	if (t->epoch != traffic_epoch)
		*t = (struct totals){ .epoch = traffic_epoch };
	if (!mark || mark > TRAFFIC_HEAD - TRAFFIC_MARK || data + mark + TRAFFIC_MARK > end) {
		t->foreign++;
		return XDP_PASS;
	}
	word = AT64(data + mark + 2);
	id = word >> 32 & (TRAFFIC_FLOWS - 1);
	if (traffic_labels && entry_in(data) >> 12 != traffic_label - id) {
		t->foreign++;
		return XDP_PASS;
	}
	t->frames++;
	t->bytes += bpf_xdp_get_buff_len(ctx);
	f = bpf_map_lookup_elem(&traffic_flows, &id);
	if (f)
		follow(f, t, word);
	if (t->until) {
		t->until--;
	} else {
		t->until = traffic_sample - 1;
		verify(ctx, t, mark, proto);
	}
	return XDP_DROP;
}

/* ----------------------------------------------------------- empty redirect */

SEC("xdp.frags")
int traffic_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&traffic_out, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
