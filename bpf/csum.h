/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * csum.h: incremental Internet checksums (RFC 1071, RFC 1624 eqn. 3).
 *
 * A delta is the ones' complement sum of all (~old + new) 16-bit words that a
 * checksum covers. It depends on the flow alone, so it is computed when the flow is
 * learned and costs one addition per packet. No kernel types: it
 * compiles natively.
 */
#ifndef SHUNT_CSUM_H
#define SHUNT_CSUM_H

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Does the sum of a few 32-bit words, which is not 0, fold to all ones: is it a multiple of
 * 65535? Times the inverse of 65535 modulo 2^64 its multiples, and no others, are the numbers
 * up to 2^64 / 65535 (Granlund and Montgomery, "Division by Invariant Integers", 9). Here
 * they are under 2^31, since the sum is under 2^46. */
static __always_inline int csum_valid(__u64 sum)
{
	return sum * 0xfffefffefffeffffull <= 0x7fffffff;
}

/* Contribution of one 32-bit word that changes from `old` to `new`. */
static __always_inline __u64 csum_diff32(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

static __always_inline __u64 csum_diff16(__u16 old, __u16 new)
{
	return (__u64)(__u16)~old + new;
}

/* The same for UDP, where 0 means no checksum and a computed 0 is sent as 0xffff (RFC 768,
 * RFC 8200 8.1): with HC' = HC + ~delta (RFC 1624 eqn. 4) it comes out so, if `check` is not 0. */
static __always_inline __u16 csum_update_udp(__u16 check, __u16 delta)
{
	__u32 sum = check + (__u32)(__u16)~delta;

	return sum + (sum >> 16);
}

/* RFC 1624 eqn. 3: HC' = ~(~HC + delta). */
static __always_inline __u16 csum_update(__u16 check, __u16 delta)
{
	__u32 sum = (__u16)~check + (__u32)delta;

	return ~(__u16)(sum + (sum >> 16));
}

#endif
