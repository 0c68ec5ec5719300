/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * edit.c: bpf/edit.h and csum.h against a router that computes every checksum from
 * scratch. The slot is filled as bpf/learn.h does, from the two ends of a flow; each frame
 * that parse.h lets through is edited by it, and must become what the slow router makes
 * of it, byte for byte. A checksum that came in wrong must stay exactly as wrong.
 *
 * Input: what is repaired (enum repair; 32: the L4 checksum too; 64: IPv4's is the other
 * zero), NAT or not, the new ends, 16 bytes for sums, the frame.
 */
#include "native.h"
#include "parse.h"
#include "edit.h"

enum { SUM_L4 = 32, SUM_FFFF = 64 };

/* What the kernel made of the flow. */
struct ends {
	uint8_t nat, dscp, mac[12], src[16], dst[16], sport[2], dport[2];
};

static int is_echo(unsigned proto) { return proto == 1 || proto == 58; }

/* Does NAT change bytes in this protocol's own header? */
static int has_ports(unsigned proto) { return proto == 6 || proto == 17 || is_echo(proto); }

/* The frame's L3 and L4, found once more. */
struct parts {
	uint8_t *ip, *l4;
	unsigned proto, l4_len, address, src;	/* length and place of addresses */
};

static struct parts parts_of(uint8_t *frame)
{
	struct parts p = { .ip = frame + 14 };

	if (be16(frame + 12) == 0x0800) {
		p.l4 = p.ip + 20;
		p.proto = p.ip[9];
		p.l4_len = be16(p.ip + 2) - 20;
		p.address = 4;
		p.src = 12;
	} else {
		p.l4 = p.ip + 40;
		p.proto = p.ip[6];
		p.l4_len = be16(p.ip + 4);
		p.address = 16;
		p.src = 8;
	}
	return p;
}

/* Sum of all that the L4 checksum covers, its own field included. */
static unsigned l4_total(const struct parts *p)
{
	uint64_t sum = words(p->l4, p->l4_len);

	if (p->proto != 1)
		sum += words(p->ip + p->src, 2 * p->address) + p->proto + p->l4_len;
	return fold(sum);
}

static void seal(struct parts *p)
{
	uint8_t *field = p->l4 + l4_sum_at(p->proto);
	unsigned sum;

	put16(field, 0);
	sum = ~l4_total(p) & 0xffff;
	put16(field, p->proto == 17 && !sum ? 0xffff : sum);
}

/* The slot as learn_rewrite() would fill it: deltas of all that changes. */
static void fill(struct slot *s, const struct frame *f, const struct ends *e)
{
	uint64_t addresses = 0, ports = 0, l3;
	uint32_t old[8] = {}, new[8] = {};
	unsigned n = f->family == 6 ? 4 : 1;

	memcpy(old, f->l3 + (n == 4 ? 8 : 12), n * 8);
	memcpy(new, e->nat ? e->src : (void *)old, n * 4);
	memcpy(new + n, e->nat ? e->dst : (void *)(old + n), n * 4);
	for (unsigned i = 0; i < 2 * n; i++)
		addresses += csum_diff32(old[i], new[i]);
	s->saddr = new[n - 1];
	s->daddr = new[2 * n - 1];
	if (n == 4) {
		memcpy(s->out6.saddr, new, 12);
		memcpy(s->out6.daddr, new + 4, 12);
	}
	s->sport = f->key.sport;
	s->dport = f->key.dport;
	if (e->nat && has_ports(f->proto)) {
		memcpy(&s->sport, e->sport, 2);
		if (!is_echo(f->proto))
			memcpy(&s->dport, e->dport, 2);
		ports = csum_diff16(f->key.sport, s->sport) + csum_diff16(f->key.dport, s->dport);
	}
	s->dscp_out = e->dscp & 0xfc;
	l3 = addresses + csum_diff16(0x45 | (tos_of(f) & 0xfc) << 8, 0x45 | s->dscp_out << 8) + csum_diff16(1, 0);
	s->l3_step = l3_step(csum_fold(l3));
	s->l4_delta = csum_fold((f->proto == 1 ? 0 : addresses) + ports);
	memcpy(s->dmac_out, e->mac, 12);
	s->flags = e->nat ? SLOT_NAT : 0;
}

/* Forward the frame the slow way. */
static void route(uint8_t *frame, const struct ends *e)
{
	struct parts p = parts_of(frame);
	unsigned error = 0, sum_at = l4_sum_at(p.proto), unsummed;

	memcpy(frame, e->mac, 12);
	unsummed = !sum_at || (p.proto == 17 && !be16(p.l4 + 6));
	if (!unsummed)
		error = l4_total(&p);	/* 0xffff: none */
	if (e->nat) {
		memcpy(p.ip + p.src, e->src, p.address);
		memcpy(p.ip + p.src + p.address, e->dst, p.address);
		if (is_echo(p.proto))
			memcpy(p.l4 + 4, e->sport, 2);
		else if (has_ports(p.proto)) {
			memcpy(p.l4, e->sport, 2);
			memcpy(p.l4 + 2, e->dport, 2);
		}
	}
	if (p.address == 4) {
		p.ip[1] = (e->dscp & 0xfc) | (p.ip[1] & 3);
		p.ip[8]--;
		put16(p.ip + 10, 0);
		put16(p.ip + 10, ~fold(words(p.ip, 20)));
	} else {
		unsigned tos = (e->dscp & 0xfc) | (p.ip[1] >> 4 & 3);

		p.ip[0] = 0x60 | tos >> 4;
		p.ip[1] = tos << 4 | (p.ip[1] & 15);
		p.ip[7]--;
	}
	if (!e->nat || unsummed)
		return;
	if (error == 0xffff) {
		seal(&p);
	} else {	/* the field that leaves the total as it was */
		uint8_t *field = p.l4 + sum_at;

		put16(field, 0);
		put16(field, fold(error + (~l4_total(&p) & 0xffff)));
	}
}

/* Does the checksum cover nothing but zeros (ICMP)? From scratch it is 0xffff then, and 0 by
 * RFC 1624, to the kernel too (inet_proto_csum_replace4()). */
static int covers_zeros(struct parts p)
{
	uint8_t *field = p.l4 + l4_sum_at(p.proto);
	unsigned was = be16(field), total;

	put16(field, 0);
	total = l4_total(&p);
	put16(field, was);
	return !total;
}

/* Two bytes that stand for the same number where that is so, or the checksum was wrong. */
static int same_field(unsigned a, unsigned b) { return a == b || (a % 0xffff == 0 && b % 0xffff == 0); }

static void compare(uint8_t *got, uint8_t *want, size_t n, int either, unsigned sum_at)
{
	uint8_t *field = parts_of(want).l4 + sum_at;

	if (either && sum_at && same_field(be16(got + (field - want)), be16(field)))
		memcpy(field, got + (field - want), 2);
	for (size_t i = 0; i < n; i++)
		WANT(got[i] == want[i], "byte %zu is %02x, not %02x", i, got[i], want[i]);
}

static void judge(uint8_t *frame, size_t n, const struct ends *e)
{
	struct frame f = { .data = frame, .end = frame + n, .len = n, .port = 1 };
	struct rewrite rw;
	struct slot s = {};
	struct parts p;
	uint8_t *want;
	int wrong;

	if (parse_ethernet(&f) || parse(&f, f.family))
		return;
	take_key(&f);
	fill(&s, &f, e);
	rewrite_copy(&rw, &s, f.family);
	p = parts_of(frame);
	wrong = l4_total(&p) != 0xffff;
	want = malloc(n);
	memcpy(want, frame, n);
	route(want, e);
	edit(&f, &rw, 1);
	compare(frame, want, n, wrong || covers_zeros(parts_of(want)), l4_sum_at(p.proto));
	free(want);
}

/* csum.h for itself. A sum of the valid words of a header is never 0. */
static void sums(struct input *in)
{
	uint64_t sum = (uint64_t)take32(in) << 32 | take32(in);
	unsigned check = take16(in), delta = take16(in), old = take16(in), new = take16(in), got;

	WANT(csum_fold(sum) == fold(sum), "of %llx", (unsigned long long)sum);
	sum %= 1ull << 46;
	if (sum)
		WANT(!csum_valid(sum) == !(sum % 0xffff == 0), "of %llx", (unsigned long long)sum);
	got = csum_update(check, delta);
	WANT(got % 0xffff == (check + 2 * 0xffff - delta) % 0xffff, "%04x for %04x, delta %04x", got, check, delta);
	got = csum_update_udp(check, delta);
	WANT(got % 0xffff == (check + 2 * 0xffff - delta) % 0xffff, "%04x for UDP", got);
	WANT(!check || got, "no checksum for %04x, delta %04x", check, delta);
	got = csum_fold(csum_diff16(old, new) + csum_diff32(new, old));
	WANT(got % 0xffff == 0, "there and back: %04x", got);
}

/* Repairs of valid checksums that nobody guesses. */
static void repair_sums(uint8_t *frame, size_t n, unsigned what)
{
	struct frame f = { .data = frame, .end = frame + n, .len = n, .port = 1 };
	struct parts p;

	if (n < 14 + 40)
		return;
	if (what & SUM_FFFF && frame[14] == 0x45) {
		put16(frame + 14 + 4, 0);
		put16(frame + 14 + 10, 0);
		put16(frame + 14 + 4, ~fold(words(frame + 14, 20)));
		put16(frame + 14 + 10, 0xffff);
	}
	if (!(what & SUM_L4) || parse_ethernet(&f) || parse(&f, f.family) || !l4_sum_at(f.proto))
		return;
	p = parts_of(frame);
	seal(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned what = take8(&in);
	struct ends e;
	uint8_t *frame;
	size_t n;

	take(&in, &e, sizeof(e));
	e.nat &= 1;
	sums(&in);
	frame = take_rest(&in, &n);
	repair(frame, n, what);
	repair_sums(frame, n, what);
	judge(frame, n, &e);
	free(frame);
	return 0;
}
