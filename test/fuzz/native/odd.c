/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * odd.c: bpf/odd.h against a slow search for TCP that reads the frame byte by byte. Both must
 * find the same segment, and say the same of it.
 *
 * Input: what is repaired (enum repair; the header's sum over its options too), the frame.
 */
#include "native.h"

struct bytes {
	const uint8_t *at;
	size_t length;
};

static int load(const struct bytes *b, uint32_t at, void *to, uint32_t n)
{
	if (at > b->length || n > b->length - at)
		return -1;
	memcpy(to, b->at + at, n);
	return 0;
}

static int64_t sum_of(const void *p, uint32_t n)
{
	uint64_t sum = 0;
	uint32_t word;

	for (uint32_t i = 0; i < n; i += 4) {
		memcpy(&word, (const uint8_t *)p + i, 4);
		sum += word;
		sum = (sum & 0xffffffff) + (sum >> 32);
	}
	return sum;
}

#define LOAD_CONTEXT struct bytes
#define LOAD_BYTES load
#define bpf_csum_diff(from, from_size, to, to_size, seed) sum_of(to, to_size)
#include "odd.h"

enum { PORT = 77 };

/* Is it one that conntrack takes, in a packet that ends at `end`? Of a fragment 14 bytes are enough. */
static size_t slow_whole(const struct bytes *b, size_t at, size_t end, unsigned unsure)
{
	size_t room;

	if (end > b->length || at + 14 > end)
		return 0;
	room = end - at;
	if (b->at[at + 12] < 0x50 || (!unsure && 4u * (b->at[at + 12] / 16) > room))
		return 0;
	return at;
}

/* Where TCP is; 0: nowhere. */
static size_t slow_tcp(const struct bytes *b, unsigned *unsure)
{
	const uint8_t *p = b->at;
	size_t at, end;
	unsigned next;

	*unsure = 0;
	if (b->length < 34)
		return 0;
	if (be16(p + 12) == 0x0800) {
		at = 14 + (p[14] & 15) * 4;
		if (at < 34 || at > b->length || fold(words(p + 14, at - 14)) != 0xffff || p[23] != 6 || be16(p + 20) & 0x1fff)
			return 0;
		*unsure = p[20] >> 5 & 1;
		return slow_whole(b, at, 14 + be16(p + 16), *unsure);
	}
	if (b->length < 54)
		return 0;
	next = p[20];
	at = 54;
	end = at + be16(p + 18);
	if (end == at && !next)		/* as long as the frame */
		end = b->length;
	if (end > b->length)
		return 0;
	for (int headers = 0; next != 6; headers++) {
		const uint8_t *h = p + at;

		if (headers == EXTENSIONS || at + 4 > b->length)
			return 0;
		if (next == 44 && be16(h + 2) & 0xfff8)
			return 0;
		if (next == 0 || (next == 44 && h[3] & 1))
			*unsure = 1;
		if (next == 0 || next == 43 || next == 60)
			at += 8 + 8 * h[1];
		else if (next == 51)
			at += 8 + 4 * h[1];
		else if (next == 44)
			at += 8;
		else
			return 0;
		next = h[0];
	}
	return slow_whole(b, at, end, *unsure);
}

/* What a found segment is said to be. */
static void compare(const struct bytes *b, size_t at, unsigned unsure, const struct closing *c)
{
	int six = be16(b->at + 12) != 0x0800;
	const uint8_t *src = b->at + (six ? 22 : 26), *dst = src + (six ? 16 : 4), *tcp = b->at + at;
	unsigned head = six ? 12 : 0;

	WANT(!memcmp(c->dmac, b->at, 6) && c->odd == (unsure ? ODD | UNSURE : ODD) && c->flags == tcp[13], "odd %u, flags %x", c->odd, c->flags);
	WANT(be32((uint8_t *)&c->key.saddr) == be32(src + head) && be32((uint8_t *)&c->key.daddr) == be32(dst + head), "addresses");
	WANT(!memcmp(c->in6.saddr, src, head) && !memcmp(c->in6.daddr, dst, head), "heads of addresses");
	WANT(!memcmp(&c->key.sport, tcp, 4) && c->seq == be32(tcp + 4) && c->ack == be32(tcp + 8), "ports, sequence number %x", c->seq);
	WANT(port_of(&c->key) == PORT && proto_of(&c->key) == 6 && family_of(&c->key) == (six ? 6 : 4), "kind %x", c->key.kind);
	WANT(c->reason == (tcp[13] & 2 ? REASON_TCP_SYN : REASON_TCP_CLOSE), "reason %d", c->reason);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned what = take8(&in), unsure;
	struct closing c = {};
	size_t n, at, header;
	uint8_t *p = take_rest(&in, &n);
	struct bytes b = { p, n };
	int closes;

	repair(p, n, (what & ~REPAIR_VERSION) | (n > 14 && p[14] >> 4 == 6 ? 0 : REPAIR_TYPE));
	if (n >= 34 && what & REPAIR_SUM && be16(p + 12) == 0x0800) {
		header = (p[14] & 15) * 4;
		put16(p + 24, 0);
		put16(p + 24, header >= 20 && 14 + header <= n ? ~fold(words(p + 14, header)) : 0);
	}
	closes = closing_odd(&b, PORT, n, &c);
	at = slow_tcp(&b, &unsure);
	WANT(!!closes == (at && p[at + 13] & 7), "%d, at %zu", closes, at);
	if (closes)
		compare(&b, at, unsure, &c);
	free(p);
	return 0;
}
