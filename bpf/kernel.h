/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * kernel.h: the few kernel types and fields the programs read, for CO-RE.
 *
 * Only fields in use are declared; their offsets come from the running kernel's
 * BTF when the programs are loaded. Written for Linux 6.6 and later. Read by
 * sight.h, learn.h and mpls.bpf.c; the XDP program for IP needs none of it.
 */
#ifndef SHUNT_KERNEL_H
#define SHUNT_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define CORE __attribute__((preserve_access_index))

struct ns_common { unsigned int inum; } CORE;
struct net;
typedef struct { struct net *net; } possible_net_t;

struct ipv6_devconf { __s32 mtu6; } CORE;
struct inet6_dev { struct ipv6_devconf cnf; } CORE;
struct Qdisc { __u32 handle; } CORE;
struct mini_Qdisc;
struct bpf_mprog_bundle { __u32 count; } CORE;
struct bpf_mprog_entry { struct bpf_mprog_bundle *parent; } CORE;
struct tcx_entry { struct mini_Qdisc *miniq; struct bpf_mprog_bundle bundle; } CORE;
struct net_device {
	unsigned int mtu;
	int ifindex;
	struct Qdisc *qdisc;
	struct nf_hook_entries *nf_hooks_ingress, *nf_hooks_egress;
	struct bpf_mprog_entry *tcx_ingress, *tcx_egress;
	const unsigned char *dev_addr;
	possible_net_t nd_net;
	struct inet6_dev *ip6_ptr;
} CORE;

/* net/sock.h */
struct sock_common { unsigned short skc_family; possible_net_t skc_net; } CORE;
struct sock { struct sock_common __sk_common; } CORE;
enum { AF_PACKET = 17 };

/* linux/skbuff.h */
struct sk_buff {
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	unsigned int len;
	__u8 active_extensions;
	__u8 ip_summed : 2;
	__u8 redirected : 1;
	__u8 ipvs_property : 1;
	int skb_iif;
	struct net_device *dev;
} CORE;
enum skb_ext_id { SKB_EXT_SEC_PATH = 1 };
enum { CHECKSUM_PARTIAL = 3 };
enum { SKB_DST_PTRMASK = ~1ul };

/* net/dst.h, net/route.h */
struct lwtunnel_state;
struct dst_entry {
	struct net_device *dev;
	struct lwtunnel_state *lwtstate;
	unsigned long _metrics;
} CORE;
struct rtable { struct dst_entry dst; __u32 rt_mtu_locked : 1, rt_pmtu : 31; } CORE;
struct fib6_info { unsigned long expires; __u32 fib6_flags; } CORE;
struct rt6_info { struct dst_entry dst; struct fib6_info *from; } CORE;
enum { RTF_EXPIRES = 0x400000 };	/* linux/ipv6_route.h */
enum { METRIC_MTU = 1 };		/* RTAX_MTU - 1 */

/* net/xdp.h */
struct xdp_buff { __u32 flags; } CORE;

/* net/netfilter/nf_conntrack.h */
union nf_inet_addr { __u32 all[4]; } CORE;
union nf_conntrack_man_proto { __u16 all; } CORE;
struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
	__u16 l3num;
} CORE;
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union { __u16 all; } u;
		__u8 protonum;
	} dst;
} CORE;
struct nf_conntrack_tuple_hash { struct nf_conntrack_tuple tuple; } CORE;
struct nf_conntrack_zone { __u16 id; __u8 dir; } CORE;
struct nf_ct_ext { __u8 offset[4]; } CORE;
struct nf_conntrack_helper;
struct nf_conn_help { struct nf_conntrack_helper *helper; } CORE;
struct ip_ct_tcp_state { __u32 td_end, td_maxack; __u8 td_scale, flags; } CORE;
struct ip_ct_tcp { struct ip_ct_tcp_state seen[2]; __u8 state; } CORE;
struct nf_ct_udp { unsigned long stream_ts; } CORE;
union nf_conntrack_proto { struct ip_ct_tcp tcp; struct nf_ct_udp udp; } CORE;
struct nf_conn {
	__u32 timeout;
	struct nf_conntrack_zone zone;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	__u32 mark;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
} CORE;
enum nf_ct_ext_id { NF_CT_EXT_HELPER = 0, NF_CT_EXT_ACCT = 3 };
enum { IP_CT_DIR_ORIGINAL = 0 };
enum { NFCT_INFOMASK = 7, NFCT_PTRMASK = ~7ul };
enum ip_conntrack_info {
	IP_CT_ESTABLISHED = 0, IP_CT_RELATED = 1, IP_CT_NEW = 2, IP_CT_IS_REPLY = 3,
	IP_CT_RELATED_REPLY = 4, IP_CT_UNTRACKED = 7,
};
enum { IPS_CONFIRMED = 1 << 3, IPS_SEQ_ADJUST = 1 << 6, IPS_DYING = 1 << 9, IPS_HELPER = 1 << 13 };
enum { TCP_CONNTRACK_ESTABLISHED = 3, IP_CT_TCP_FLAG_BE_LIBERAL = 0x08,
       IP_CT_TCP_FLAG_WINDOW_SCALE = 0x01, IP_CT_TCP_FLAG_SACK_PERM = 0x02 };

/* linux/netfilter.h: hooks[num], then orig_ops[num] (nf_hook_entries_get_hook_ops) */
struct nf_hook_entry { void *hook; void *priv; } CORE;
struct nf_hook_entries { __u16 num_hook_entries; struct nf_hook_entry hooks[]; } CORE;
struct nf_hook_ops { int priority; } CORE;
struct netns_nf { struct nf_hook_entries *hooks_ipv4[5], *hooks_ipv6[5]; } CORE;
struct net { struct ns_common ns; struct netns_nf nf; } CORE;
enum { NF_INET_PRE_ROUTING = 0, NF_IP_PRI_CONNTRACK = -200, HOOKS_MAX = 32 };

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* A loop that the verifier goes round until it learns nothing new, and not once for each turn
 * (kernel/bpf/bpf_iter.c). */
struct counting { __u64 state; };
extern int bpf_iter_num_new(struct counting *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct counting *it) __ksym;
extern void bpf_iter_num_destroy(struct counting *it) __ksym;

#endif
