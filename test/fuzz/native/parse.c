/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * parse.c: bpf/parse.h against a slow parser that reads the frame byte by byte. Both must
 * find the same reason, the same lengths and the same key, whatever part of the frame is
 * linear.
 *
 * Input: what is repaired (enum repair; 32: not all is linear), how much is not, the frame.
 */
#include "native.h"
#include "parse.h"

enum { PORT = 77, CUT = 32 };

/* What the slow parser finds. */
struct found {
	enum reason reason;
	unsigned family, proto, l3_len, l4_len, tos, label;
	const uint8_t *src, *dst;
	uint8_t ports[4];
};

/* Length is what the frame claims to be long, linear what of it may be read. */
struct bytes {
	const uint8_t *at;
	size_t length, linear;
};

static enum reason slow_ethernet(const struct bytes *b)
{
	unsigned type;

	if (b->linear < 14)
		return REASON_MALFORMED;
	type = be16(b->at + 12);
	if (type == 0x8100 || type == 0x88a8)
		return REASON_VLAN_TAG;
	if (type == 0x8847 || type == 0x8848)
		return REASON_MPLS_OFF;
	if (type != 0x0800 && type != 0x86dd)
		return REASON_NOT_IP;
	return b->at[0] & 1 ? REASON_NOT_HOST : REASON_HIT;
}

static enum reason slow_tcp(const struct bytes *b, const uint8_t *l4, unsigned l4_len)
{
	int fin, syn, rst, ack;
	unsigned header;

	if (l4 + 20 > b->at + b->linear)
		return REASON_MALFORMED;
	header = (l4[12] >> 4) * 4;
	if (header < 20 || header > l4_len)
		return REASON_MALFORMED;
	fin = l4[13] & 1;
	syn = l4[13] & 2;
	rst = l4[13] & 4;
	ack = l4[13] & 16;
	if (syn)
		return REASON_TCP_SYN;
	if (fin || rst)
		return REASON_TCP_CLOSE;
	return ack ? REASON_HIT : REASON_TCP_NO_ACK;
}

static enum reason slow_l4(const struct bytes *b, const uint8_t *l4, struct found *f)
{
	unsigned covered;
	int echo;

	memset(f->ports, 0, 4);
	switch (f->proto) {
	case 6:
		memcpy(f->ports, l4, 4);
		return slow_tcp(b, l4, f->l4_len);
	case 17:
		memcpy(f->ports, l4, 4);
		return be16(l4 + 4) < 8 || be16(l4 + 4) > f->l4_len ? REASON_MALFORMED : REASON_HIT;
	case 1:
	case 58:
		memcpy(f->ports, l4 + 4, 2);
		memcpy(f->ports + 2, l4, 2);
		if (f->proto == 1)
			echo = f->family == 4 && (l4[0] == 8 || l4[0] == 0);
		else
			echo = f->family == 6 && (l4[0] == 128 || l4[0] == 129);
		return echo && !l4[1] ? REASON_HIT : REASON_NOT_ECHO;
	case 136:	/* UDP-Lite */
		memcpy(f->ports, l4, 4);
		covered = be16(l4 + 4);
		if (!be16(l4 + 6) || covered > f->l4_len || (covered > 0 && covered < 8))
			return REASON_MALFORMED;
		return REASON_HIT;
	case 33:	/* DCCP */
	case 50:	/* ESP */
	case 132:	/* SCTP */
		memcpy(f->ports, l4, 4);
		return REASON_HIT;
	case 47:	/* GRE */
		if (l4[1] & 7)
			return REASON_MALFORMED;
		if (l4[0] & 0x20 && !(l4[0] & 0x80))
			memcpy(f->ports, l4 + 4, 4);
	}
	return REASON_HIT;
}

static enum reason slow_ipv4(const struct bytes *b, struct found *f)
{
	const uint8_t *ip = b->at + 14;

	if (b->linear < 14 + 20 + 8)
		return REASON_RUNT;
	f->family = 4;
	f->proto = ip[9];
	f->l3_len = be16(ip + 2);
	f->l4_len = f->l3_len - 20;
	f->tos = ip[1];
	f->label = 0;
	f->src = ip + 12;
	f->dst = ip + 16;
	if (ip[0] >> 4 != 4 || (ip[0] & 15) < 5)
		return REASON_MALFORMED;
	if ((ip[0] & 15) > 5)
		return REASON_IP_OPTIONS;
	if (f->l3_len < 20 || f->l3_len > b->length - 14)
		return REASON_MALFORMED;
	if (f->l4_len < 8)
		return REASON_RUNT;
	if (be16(ip + 6) & ~0x4000)
		return REASON_FRAGMENT;
	if (ip[8] <= 1)
		return REASON_TTL;
	if (fold(words(ip, 20)) != 0xffff)
		return REASON_BAD_CHECKSUM;
	return slow_l4(b, ip + 20, f);
}

static enum reason slow_ipv6(const struct bytes *b, struct found *f)
{
	static const uint8_t extensions[] = { 0, 43, 51, 59, 60, 135, 139, 140, 253, 254 };
	const uint8_t *ip = b->at + 14;

	if (b->linear < 14 + 40 + 8)
		return REASON_RUNT;
	f->family = 6;
	f->proto = ip[6];
	f->l4_len = be16(ip + 4);
	f->l3_len = f->l4_len + 40;
	f->tos = (ip[0] & 15) << 4 | ip[1] >> 4;
	f->label = be32(ip) & 0xfffff;
	f->src = ip + 8;
	f->dst = ip + 24;
	if (ip[0] >> 4 != 6 || !f->l4_len || f->l3_len > b->length - 14)
		return REASON_MALFORMED;
	if (f->l4_len < 8)
		return REASON_RUNT;
	if (f->proto == 44)
		return REASON_FRAGMENT;
	if (memchr(extensions, f->proto, sizeof(extensions)))
		return REASON_EXTENSION_HEADER;
	if (ip[7] <= 1)
		return REASON_TTL;
	return slow_l4(b, ip + 40, f);
}

/* The key, taken apart again. */
static void same_key(const struct frame *f, const struct found *want)
{
	uint8_t src[16], dst[16];

	memcpy(src + 12, &f->key.saddr, 4);
	memcpy(dst + 12, &f->key.daddr, 4);
	if (want->family == 6) {
		memcpy(src, f->in6.saddr, 12);
		memcpy(dst, f->in6.daddr, 12);
	}
	WANT(!memcmp(want->family == 6 ? src : src + 12, want->src, want->family == 6 ? 16 : 4), "source");
	WANT(!memcmp(want->family == 6 ? dst : dst + 12, want->dst, want->family == 6 ? 16 : 4), "destination");
	WANT(!memcmp(&f->key.sport, want->ports, 2) && !memcmp(&f->key.dport, want->ports + 2, 2), "ports");
	WANT(port_of(&f->key) == PORT && family_of(&f->key) == want->family && proto_of(&f->key) == want->proto, "kind");
}

static void judge(const struct bytes *b)
{
	struct frame f = { .data = (void *)b->at, .end = (void *)b->at + b->linear, .len = b->length, .port = PORT };
	enum reason reason = parse_ethernet(&f);
	struct found want = {};

	WANT(reason == slow_ethernet(b), "reason of the Ethernet header: %d, not %d", slow_ethernet(b), reason);
	if (reason != REASON_HIT && reason != REASON_NOT_HOST)
		return;
	reason = parse(&f, f.family);	/* XDP looks at it before it minds a group's MAC */
	want.reason = be16(b->at + 12) == 0x0800 ? slow_ipv4(b, &want) : slow_ipv6(b, &want);
	WANT(reason == want.reason, "reason %d, not %d", want.reason, reason);
	if (reason != REASON_HIT && reason != REASON_TCP_CLOSE && reason != REASON_TCP_SYN)
		return;
	WANT(f.family == want.family && f.proto == want.proto, "family and protocol");
	WANT(f.l3_len == want.l3_len && f.l4_len == want.l4_len, "lengths");
	WANT(tos_of(&f) == want.tos && __builtin_bswap32(label_of(&f)) == want.label, "traffic class and label");
	WANT(trailer_of(&f) == b->length - 14 - want.l3_len, "trailer");
	take_key(&f);
	same_key(&f, &want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned what = take8(&in), cut = take8(&in);
	struct bytes b;
	uint8_t *frame, *linear;

	frame = take_rest(&in, &b.length);
	repair(frame, b.length, what);
	b.linear = what & CUT && cut < b.length ? b.length - cut : b.length;
	linear = malloc(b.linear ? b.linear : 1);
	memcpy(linear, frame, b.linear);
	free(frame);
	b.at = linear;
	judge(&b);
	free(linear);
	return 0;
}
