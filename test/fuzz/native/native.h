/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * native.h: what the headers of bpf/ find instead of a kernel when they are compiled for
 * this machine. Included first by each target; a target is one libFuzzer binary.
 *
 * Maps become plain globals, so ASan watches their edges; the helpers that the headers
 * under test call become the few functions below. Not sanitized: alignment, since the
 * headers read two or four fields at once on purpose, wherever a packet puts them.
 */
#ifndef SHUNT_NATIVE_H
#define SHUNT_NATIVE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#undef SEC
#define SEC(name)

/* The clock is the target's to set. */
static uint64_t native_now;
#define bpf_jiffies64() native_now
#define bpf_get_smp_processor_id() 0u

/* One CPU, a table as small as it was compiled, and a conntrack that can be asked. */
#define native_loaded(number) ((number) == BUCKET_SHIFT ? 28 : (number) == CT_LOOKUPS)

/* One event at a time; native_events counts those that were submitted. */
static uint8_t native_event[256];
static unsigned native_events;
#define bpf_ringbuf_reserve(map, size, flags) ((void *)native_event)
#define bpf_ringbuf_submit(event, flags) ((void)native_events++)

/* The ports of the data path, by ifindex. */
static const uint32_t native_ports[] = { 1, 2, 3, 4 };
#define bpf_for_each_map_elem(map, call, context, flags)				\
	do {										\
		for (unsigned n_ = 0; n_ < sizeof(native_ports) / 4; n_++)		\
			if (call(map, &native_ports[n_], 0, context))			\
				break;							\
	} while (0)

/* An oracle disagrees. */
#define WANT(ok, ...)						\
	do {							\
		if (!(ok)) {					\
			fprintf(stderr, "%s:%d: want %s: ", __FILE__, __LINE__, #ok);	\
			fprintf(stderr, __VA_ARGS__);		\
			fputc('\n', stderr);			\
			abort();				\
		}						\
	} while (0)

/* Bytes of the input, in turn; zeros behind its end. */
struct input {
	const uint8_t *at;
	size_t left;
};

static inline uint8_t take8(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

static inline uint16_t take16(struct input *in) { return take8(in) << 8 | take8(in); }
static inline uint32_t take32(struct input *in) { return (uint32_t)take16(in) << 16 | take16(in); }

static inline void take(struct input *in, void *to, size_t n)
{
	for (uint8_t *p = to; n--; p++)
		*p = take8(in);
}

/* Big endian numbers, byte by byte: the oracles read nothing the way the headers do. */
static inline unsigned be16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static inline uint32_t be32(const uint8_t *p) { return (uint32_t)be16(p) << 16 | be16(p + 2); }
static inline void put16(uint8_t *p, unsigned v) { p[0] = v >> 8; p[1] = v; }

/* Ones' complement sum of big endian words (RFC 1071), not folded. */
static inline uint64_t words(const uint8_t *p, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += i % 2 ? p[i] : p[i] << 8;
	return sum;
}

static inline unsigned fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* How a frame is repaired before it is judged: no fuzzer guesses a checksum. */
enum repair { REPAIR_TYPE = 1, REPAIR_LENGTH = 2, REPAIR_SUM = 4, REPAIR_VERSION = 8, REPAIR_L4 = 16 };

static inline void repair(uint8_t *p, size_t n, unsigned what)
{
	int six;

	if (n < 14 + 20)
		return;
	six = what & REPAIR_VERSION ? !(what & 128) : p[14] >> 4 == 6;
	if (what & REPAIR_VERSION)
		p[14] = six ? 0x60 | (p[14] & 15) : 0x45;
	if (what & REPAIR_TYPE)
		put16(p + 12, six ? 0x86dd : 0x0800);
	if (six) {
		if (what & REPAIR_LENGTH && n >= 54)
			put16(p + 14 + 4, n - 54);
		if (what & REPAIR_L4 && n >= 54 + 8 && p[14 + 6] == 17)
			put16(p + 54 + 4, be16(p + 14 + 4));
		return;
	}
	if (what & REPAIR_LENGTH)
		put16(p + 14 + 2, n - 14);
	if (what & REPAIR_L4 && n >= 34 + 8 && p[14 + 9] == 17)
		put16(p + 34 + 4, be16(p + 14 + 2) - 20);
	if (what & REPAIR_SUM) {
		put16(p + 14 + 10, 0);
		put16(p + 14 + 10, ~fold(words(p + 14, 20)));
	}
}

/* The rest of the input as a frame that ends where its memory ends. */
static inline uint8_t *take_rest(struct input *in, size_t *n)
{
	uint8_t *p = malloc(in->left ? in->left : 1);

	*n = in->left;
	memcpy(p, in->at, in->left);
	return p;
}

#endif
