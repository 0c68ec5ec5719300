/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi.h: everything that C and Go both read.
 *
 * C is the only source: bpf2go turns these structs and enums into Go types (internal/dataplane), so
 * constants that Go needs are enum members, never #defines. ABI_VERSION names the layout of the pinned
 * maps; a daemon that finds pinned maps of another version does not take them over, it starts afresh.
 *
 * Byte order: addresses, ports and MACs are as on the wire. Times are jiffies
 * (u32, they wrap: compare with passed() only). Checksum deltas are ones'
 * complement sums in wire order, folded to 16 bits (RFC 1624, eqn. 3).
 */
#ifndef SHUNT_ABI_H
#define SHUNT_ABI_H

#include <linux/types.h>

enum abi {
	ABI_VERSION = 8,
	WAYS = 2,		/* slots in a bucket */
	MAX_PORTS = 256,	/* attached interfaces, and rows of counters per stage */
	SIGHTINGS = 32,		/* sighted packets under way per CPU */
	TALLY = 128,		/* counters in a row: whole cache lines, no two CPUs share one */
	RATES = 64,		/* reasons that may be given a rate: the first of them */
	SLOT_SIZE = 192,	/* three cache lines; an IPv4 hit in the first of four places touches two */
	SIGHTING_SIZE = 192,	/* three, the last of which TC egress writes */
	GEN_NEVER = 0,		/* no generation has this number */
	SOURCE_BITS = 16,	/* of the number by which a source's slots are counted */
	BUCKETS = 16,		/* in the object; the daemon makes the table as large as it is told to */
	SAMPLES = 256,		/* remembered packets without a slot, per CPU: the hash has 8 bits */
	IMPOSER_TX = MAX_PORTS,	/* index in the devmap of where IP packets get their labels */
	LSPS = 1 << 20,		/* prefixes of a family that get labels */
};

/* Numbers that are known when a program is loaded. They stand in its instructions: the daemon writes
 * them in the place of these. */
enum loaded {
	CPUS = 0x5ab1e000,		/* that may ever be there: less one, as all numbers of rows; a power of two */
	BUCKET_SHIFT,			/* 32 less the binary logarithm of the number of buckets */
	NETNS,				/* inode of the network namespace */
	NHLFES,				/* and what else the tables of label switching hold */
	NHLFE_ROWS,
	CHOICES,
	SEGMENTS,			/* of a CPU */
	SEGMENTS_SIZE,			/* in bytes */
	LOSSES_SIZE,
	SIGHTING_AGE,			/* after which a sighting teaches nothing, in ns; below 2^31 */
	CT_LOOKUPS,			/* 1: programs can look conntrack up */
};

/*
 * Where a packet left the programs. A packet can be counted once at each stage:
 * a punt at XDP is seen again at TC ingress, and at TC egress if it is forwarded.
 */
enum stage {
	STAGE_XDP = 0,
	STAGE_TC_INGRESS = 1,
	STAGE_TC_EGRESS = 2,
	STAGE_MPLS = 3,		/* labelled frames, in XDP; what is delivered goes on to STAGE_XDP */
	STAGES = 4,
};

/*
 * Every way out of the programs. The names, in lower case and without REASON_,
 * are the words of the counters, of the CLI and of `shunt explain`; their meaning
 * for people is in internal/reason. Order is ABI.
 */
enum reason {
	REASON_HIT = 0,			/* repeated */
	/* what the packet is: XDP and TC ingress */
	REASON_PAUSED,			/* `shunt pause` */
	REASON_NOT_IP,			/* ARP, LLDP, ...: the kernel's */
	REASON_VLAN_TAG,		/* tagged, in the frame or beside it */
	REASON_NOT_HOST,		/* group MAC, or not for this router's MAC */
	REASON_IPSEC,			/* came out of an IPsec tunnel */
	REASON_RUNT,			/* ends before the 8 bytes behind its IP header */
	REASON_MALFORMED,		/* truncated, lengths that contradict each other, GRE not of version 0 */
	REASON_BAD_CHECKSUM,		/* of the IPv4 header */
	REASON_IP_OPTIONS,
	REASON_EXTENSION_HEADER,
	REASON_FRAGMENT,		/* the first one included */
	REASON_TTL,			/* 1 or 0: the kernel answers with ICMP */
	REASON_NOT_ECHO,		/* ICMP other than echo */
	REASON_TCP_SYN,
	REASON_TCP_NO_ACK,
	REASON_TCP_CLOSE,		/* plausible FIN or RST: both directions closed */
	REASON_TCP_IMPLAUSIBLE,		/* blind FIN or RST on an armed connection: dropped */
	/* what is known of its flow: XDP and TC ingress */
	REASON_JUDGED,			/* TC ingress: XDP saw it, and nothing is due */
	REASON_TABLE_FULL,
	REASON_BELOW_THRESHOLD,
	REASON_LEARNING,		/* due, but nothing came out at the egress yet */
	REASON_LEASE_ENDED,		/* the kernel proves it again */
	REASON_OLD_GENERATION,		/* something changed since it was learned */
	REASON_CLOSED,			/* after FIN or RST */
	REASON_BUSY,			/* the slot is being rewritten this very moment */
	REASON_MAC_DIFFERS,
	REASON_DSCP_DIFFERS,
	REASON_LABEL_DIFFERS,		/* IPv6 flow label */
	REASON_OVER_MTU,
	REASON_TC_WAY,			/* XDP only: this flow is repeated at TC ingress */
	REASON_EGRESS_GONE,		/* XDP only: dropped, and the flow's next packet is the kernel's */
	REASON_DRAINING,		/* XDP only: earlier packets of it are still on the slow path */
	/* what the kernel did to it: TC egress */
	REASON_LEARNED,
	REASON_RENEWED,			/* lease renewed with the same rewrite */
	REASON_CHANGED,			/* lease renewed, but the kernel now does something else */
	REASON_UNSIGHTED,		/* local traffic, or a packet not due for learning */
	REASON_REDIRECTED,		/* by the fast path or by another tc program */
	REASON_LOCAL_SOCKET,		/* skb memory reused by this host's own traffic */
	REASON_STALE_SIGHTING,		/* older than SIGHTING_AGE */
	REASON_OTHER_PACKET,		/* same skb memory, another packet */
	REASON_PORT_UNKNOWN,		/* came in or goes out by a port that is not fast */
	REASON_ENCAPSULATED,		/* another protocol comes out than went in */
	REASON_NO_CONNTRACK,		/* conntrack is in use and calls it INVALID */
	REASON_CT_UNCONFIRMED,
	REASON_CT_RELATED,
	REASON_CT_HELPER,
	REASON_CT_SEQADJ,
	REASON_CT_TUPLE_DIFFERS,	/* conntrack would have done something else */
	REASON_CT_NOT_ESTABLISHED,	/* TCP; SCTP and DCCP never count as such */
	REASON_CT_NOT_LIBERAL,		/* TCP: the daemon was asked to set be-liberal */
	REASON_CT_EXPIRING,		/* less timeout left than a useful lease */
	REASON_TTL_STEP,		/* TTL was set, or not lowered by one */
	REASON_HEADER_CHANGED,		/* ECN, DF, flow label or another field was changed */
	REASON_PAYLOAD_CHANGED,		/* the L4 checksum tells: more than NAT was done */
	REASON_L4_REWRITTEN,		/* ports of a protocol that shunt does not edit */
	REASON_TCP_OFF,			/* tcp = "off" */
	REASON_SLOT_LOST,		/* the slot was given to another flow meanwhile */
	/* what policy says to it: TC egress */
	REASON_NOT_MARKED,		/* policy = "mark", and its connmark is another one, or it has none */
	REASON_EXCLUDED,		/* by the configuration */
	REASON_PER_PACKET_RULE,		/* a rule of the ruleset looks at each of its packets */
	/* what keeps one sender from harming the others: XDP and TC ingress */
	REASON_SOURCE_FULL,		/* its source holds as many slots as one may */
	REASON_POLICED,			/* over the rate of its reason: dropped */
	/* what becomes of a labelled frame: MPLS */
	REASON_MPLS_OFF,		/* no label space on this port: the kernel's */
	REASON_MPLS_SWITCHED,
	REASON_MPLS_DELIVERED,		/* popped; the packet goes on as if it had come without labels */
	REASON_MPLS_MALFORMED,		/* ends before the bottom of its stack, or a label stands where it must not */
	REASON_MPLS_NO_LABEL,		/* nobody has given it out (RFC 3031 3.18) */
	REASON_MPLS_TTL,		/* would leave with 0: the daemon answers */
	REASON_MPLS_TTL_ZERO,		/* came in with 0 */
	REASON_MPLS_SPECIAL,		/* a special-purpose label that is not for here */
	REASON_MPLS_ALERT,		/* router alert label: the daemon's */
	REASON_MPLS_OAM,		/* generic associated channel label: the daemon's */
	REASON_MPLS_PAYLOAD,		/* under the labels is not what they say */
	REASON_MPLS_OVER_MTU,		/* the daemon answers, or cuts it */
	REASON_MPLS_DEPTH,		/* over 16 look-ups */
	REASON_MPLS_DISCARD,		/* as an NHLFE says, or none was chosen */
	REASON_MPLS_NO_ADJACENCY,	/* neighbour or port are not there */
	REASON_MPLS_ORPHANED,		/* the daemon is dead for longer than labels may live */
	REASON_MPLS_EGRESS_GONE,
	REASON_MPLS_NO_ROOM,		/* the driver leaves none in front of the frame */
	REASON_MPLS_IMPOSED,		/* an IP packet, which goes on with labels */
	/* what others put at a port */
	REASON_QUEUE_LOOKS_DEEPER,	/* a qdisc or filter of the egress reads what a hit does not carry */
	REASON_UNWATCHED,		/* something stands at its way in or out, and no daemon reads it */
	/* who else decides on a packet: TC egress */
	REASON_ROUTE_PROGRAM,		/* its route has a lightweight tunnel: a program, ILA, ... */
	REASON_IPVS,
	REASON_GROUP_NEIGHBOUR,		/* its next hop has a group MAC */
	REASONS,
};

enum slot_state {
	SLOT_EMPTY = 0,
	SLOT_SEEN = 1,			/* counted, not (yet) learned */
	SLOT_ARMED = 2,			/* may be used while lease and generation are good */
	SLOT_CLOSED = 3,		/* FIN or RST went by */
};

enum slot_flag {
	SLOT_XDP = 1,			/* repeated in XDP; else at TC ingress */
	SLOT_DRAIN = 2,			/* when it was armed, more packets were between XDP and TC */
	SLOT_LIBERAL = 4,		/* conntrack's window check is off: judge RST and FIN here */
	SLOT_NAT = 8,			/* addresses or ports differ */
	SLOT_CT = 16,			/* conntrack knows the flow */
	SLOT_PAIRED = 32,		/* new addresses, ports and oif are known: so is the reverse key */
	SLOT_LSP = 64,			/* its packets get labels (lsp.h): XDP sends them to where that is done */
};

enum port_flag {
	PORT_XDP_RX = 1,		/* the XDP program is attached */
	PORT_XDP_TX = 2,		/* takes redirected frames, no queueing policy */
	PORT_LOOKS_DEEPER = 4,		/* its qdiscs and filters may read more than a hit carries: no conntrack entry, no route */
	PORT_KEEPS_MARK = 8,		/* the skb goes on behind it, with its mark; a frame from XDP has none */
	PORT_WIRE = 16,			/* XDP sees every packet alone and finished, whatever GRO makes of it later */
};

/* A flow as it looks on the wire where it comes in: two numbers, so that two comparisons
 * tell one from another. For IPv6 saddr and daddr are the last words of the addresses;
 * the first three are in flow_words. */
struct flow_key {
	__u32 saddr, daddr;
	__u16 sport, dport;		/* ICMP: id, and type in dport; GRE key, ESP SPI: both */
	__u32 kind;			/* ifindex, which is under PORT_LIMIT, family and protocol */
} __attribute__((aligned(8)));

/* flow_key.kind */
enum kind {
	KIND_IPV6 = 0x100,		/* less than that: the protocol */
	KIND_PORT = 9,			/* bits that the ifindex is shifted by */
	PORT_LIMIT = 1 << 23,
};

struct flow_words {
	__u32 saddr[3], daddr[3];
};

/*
 * One flow. `seq` is odd while a writer is in: a reader copies what it needs and
 * looks at seq again before it writes the first packet byte. packets, bytes, tcp_*,
 * count and seen are written without it (single fields, each right by itself).
 */
struct slot {
	/* line 0: whose it is, and whether it may be used */
	__u32 seq;
	__u32 gen;			/* generation of the sighting it was learned from */
	__u32 lease;			/* jiffies at which it ends; SEEN: those of the last request for be-liberal, or
					 * after a SYN on a liberal connection the number that acknowledges that SYN */
	__u8 state;			/* enum slot_state; these four are also read as one word */
	__u8 dscp_in;			/* TOS or traffic class without ECN, as it comes in */
	__u8 flags;			/* enum slot_flag */
	__u8 dscp_out;
	struct flow_key key;		/* 16 bytes */
	__u8 dmac_in[6], smac_in[6];
	__u32 label_in;			/* IPv6 flow label, wire order; IPv4: 0 */
	__u16 mtu;			/* largest IP packet for the egress and its route */
	__u8 why;			/* last reason at TC ingress or egress, for explain */
	__u8 tcp_scale;			/* scale of tcp_wnd */
	__u32 count;			/* sighted packets without an idle second between them; once
					 * armed: NAPI polls at the last hit after the lease's end */
	__u32 seen;			/* jiffies of the last one */
	__u32 oif;			/* ifindex, for TC */
	/* line 1: what to make of it, in the order of struct rewrite (edit.h) */
	__u32 saddr, daddr;		/* new ones, last words for IPv6 */
	__u16 sport, dport;		/* new ones */
	__u16 l4_delta;			/* L4 checksum: addresses (if covered) and ports */
	__u16 tx;			/* devmap index, for XDP */
	__u8 dmac_out[6], smac_out[6];
	__u32 l3_step;			/* of TTL, protocol and IPv4 checksum: edit_ipv4() */
	__u64 packets, bytes;		/* repeated; bytes of IP */
	__u32 tcp_seq, tcp_ack;		/* furthest end of a segment seen, and what the last one acknowledged */
	__u32 mark;			/* of the skb, for TC */
	__u16 tcp_wnd;			/* window field last seen */
	__u16 watch;			/* control.watch of when tcp_* were taken; 0: never */
	/* line 2: IPv6 words, and what only the slow path reads */
	struct flow_words in6, out6;
	__u32 priority;			/* of the skb, for TC */
	__u32 born;			/* jiffies when it was first armed */
	__u16 zone;			/* conntrack's, of this direction */
	__u8 given, taken;		/* marked packets that XDP gave to TC ingress, and that came there */
	__u16 renewals;			/* leases proved again; stays at the most that it can be */
	__u16 spent;			/* jiffies when a bound of policy was found to be passed; 0: it was not */
};

struct bucket {
	struct slot way[WAYS];
};

/* One sighted packet, per CPU, found again at TC egress by its skb pointer. */
struct sighting {
	__u64 skb;			/* 0: none */
	__u64 time;			/* ns, monotonic */
	struct flow_key key;
	struct flow_words in6;
	__u32 bucket;			/* where its slot is */
	__u32 way;
	__u32 gen, clock;
	__u32 label;
	__u32 len;			/* of the frame, without padding or trailer */
	__u16 id;			/* IPv4 */
	__u16 frag;			/* IPv4 flags and offset */
	__u16 l4_sum;			/* checksum field of L4 */
	__u8 tos, ttl;
	__u8 partial;			/* CHECKSUM_PARTIAL: the field is a pseudo header's sum */
	__u8 gso;
	__u8 dmac[6], smac[6];
	__u8 pad[26];
	/* line 2: as it goes out, written at TC egress */
	struct flow_key out;
	struct flow_words out6;
	__u16 out_sum;
	__u8 out_tos;
	__u8 end[21];
};

struct port {
	__u32 flags;			/* enum port_flag */
	__u32 tx;			/* index into the devmap */
};

/* How many packets of one reason a CPU's kernel gets. Both in ns. */
struct rate {
	__u64 every;			/* between two packets, if they come evenly */
	__u64 ahead;			/* of that they may be: the burst */
};

/* Written by the daemon, read by every packet. One global, mapped into both. */
struct control {
	__u32 abi;
	__u32 gen;			/* entries of another generation are not used */
	__u32 paused;			/* set before the generation is raised: armed entries are not asked */
	__u32 no_marks;			/* a driver keeps no XDP metadata: TC ingress judges for itself */
	__u32 threshold;		/* sighted packets before a flow is learned */
	__u32 idle;			/* jiffies without a packet that end the counting */
	__u32 lease;			/* jiffies, with the daemon dead */
	__u32 lease_live;		/* jiffies, while it beats */
	__u32 beat;			/* jiffies of its last heartbeat */
	__u32 beat_max;			/* jiffies after which it counts as dead */
	__u32 tcp_off;
	__u32 hz;
	__u32 clock;			/* raised before any change is obeyed: sightings from before teach nothing */
	__u32 verify;			/* every Nth flow gets leases of a quarter of a second; 0: none */
	__u64 secret[8];		/* odd: keys of the flow hash, random per start from nothing */
	__u64 mix;			/* odd: its multiplier for the second choice */
	__u64 policed;			/* a bit for each reason that has a rate */
	struct rate rates[RATES];	/* by reason */
	__u32 source_flows;		/* slots that one source may hold; 0: any number */
	__u32 label_hold;		/* jiffies after its last heartbeat that labels are switched; ~0: for ever */
	__u32 imposer;			/* ifindex of where IP packets get their labels; 0: none do */
	__u32 watch;			/* 1 to 65535; raised when TCP is seen again after a pause, so tcp_* are stale */
};

/* IP addresses that begin alike, as a longest prefix match takes them. */
struct prefix4 {
	__u32 bits;			/* of which so many count */
	__u32 addr;
};
struct prefix6 {
	__u32 bits;
	__u32 addr[4];
};

/* Counters per CPU, stage and ifindex % MAX_PORTS. */
struct tally {
	__u64 packets[TALLY - 2];	/* by reason */
	__u64 merged, partial;		/* TC ingress: partial checksums, so the peer is no wire; of them, several segments */
};

/* Slots that sources hold, by the number that source.h gives them. */
struct sources {
	__s32 held[1 << SOURCE_BITS];
};

/* A token bucket, per CPU and reason. */
struct meter {
	__u64 full;			/* ns, monotonic: when it is full again */
	__u64 dropped;
};

/* What became of redirected frames, per CPU and ifindex % MAX_PORTS, from the kernel's tracepoints. */
struct transmit {
	__u64 sent;
	__u64 drops;			/* the driver's queue was full */
	__u64 errors;			/* the driver refused: no NAPI, no XDP, link down */
	__u32 polls;			/* NAPI polls that were seen to end */
	__u32 waits;			/* ifindex of whose poll XDP waits for, 0: none */
	__u32 bulks, least;		/* since then: ends_poll() */
	__u64 before;			/* sent when this window began: loses_many() */
	__u32 window, lost;		/* jiffies at its begin, and frames lost since */
	__u64 zero;
};

/* XDP leaves it as metadata in front of packets that TC ingress must look at. */
struct mark {
	__u32 magic;
};

enum mark_magic {
	MARK = 0x73687574,
};

enum event_kind {
	EVENT_LIBERAL = 1,		/* set be-liberal on this connection, please */
	EVENT_RESET = 2,		/* it was reset: conntrack may not have believed it */
	EVENT_DIFFERENCE = 3,		/* struct difference: the kernel does something else now */
};

/* BPF to daemon, by ring buffer: a connection by one of its tuples (LIBERAL: the original). */
struct event {
	__u32 kind;			/* enum event_kind */
	__u8 family, proto;
	__u16 zone;
	__u16 sport, dport;
	__u32 pad;
	__u32 saddr[4], daddr[4];	/* IPv4: the first word */
};

/* What a packet becomes. */
struct form {
	__u32 saddr, daddr;		/* last words for IPv6 */
	__u16 sport, dport;
	__u8 dmac[6], smac[6];
	__u32 oif, mark, priority;
	__u16 mtu;
	__u8 dscp;			/* TOS or traffic class without ECN */
	__u8 zero;
	struct flow_words out6;
};

/* BPF to daemon, by the same ring buffer: a renewal found that the kernel does something else
 * than when the lease was given, in one and the same generation. */
struct difference {
	__u32 kind;			/* EVENT_DIFFERENCE */
	__u32 gen;
	struct flow_key key;
	struct flow_words in6;
	__u64 packets;			/* repeated in the old form since the flow was first armed */
	struct form before, after;
};

/* A packet that no slot remembers, per CPU, for explain. */
struct sample {
	__u32 seq;			/* odd while it is written */
	__u32 seen;			/* jiffies of the last such packet */
	struct flow_key key;		/* ports are 0 where they cannot be told */
	struct flow_words in6;
	__u32 packets;			/* that were looked at since it is here */
	__u16 tag;			/* VLAN id, 0: none */
	__u8 reason;			/* enum reason */
	__u8 portless;			/* ports cannot be told: a fragment, or the packet is cut short */
	__u64 zero;
};

/* A CPU's samples. At most so many are taken in a jiffy: a flood costs no more than that. */
struct notebook {
	__u32 jiffy, left;
	__u32 swept, sweeps;		/* jiffy of the last sweep of flow_sweep(), and their number in it */
	__u32 hand;			/* buckets that it has looked at */
	__u32 zero[11];
	struct sample samples[SAMPLES];
};

enum policy_size {
	POLICY_RULES = 256,
	POLICY_GROUPS = 32,		/* of ports, one bit each */
};

/* What conntrack calls a packet, for policy_rule.states. */
enum policy_state {
	POLICY_ESTABLISHED = 1,
	POLICY_NEW = 2,			/* nothing came back yet */
	POLICY_UNTRACKED = 4,		/* no conntrack, or by a notrack rule */
};

/* What nf_conntrack_acct counts, for policy_rule.counter. */
enum policy_counter {
	POLICY_ALWAYS = 0,		/* no counter */
	POLICY_PACKETS = 1,
	POLICY_BYTES = 2,
};

/* A rule about flows that may not be learned, or may (policy.h): all of it must fit. Each
 * address and port is tried as it came in and as it goes out. */
struct policy_rule {
	__u32 saddr[4], smask[4];	/* IPv4: the last word, like flow_key */
	__u32 daddr[4], dmask[4];
	__u16 sport[2], dport[2];	/* from, to, in host order */
	__u32 in, out;			/* a group that the port must be in; 0: any port */
	__u16 kind, kind_mask;		/* family and protocol, as in flow_key.kind */
	__u8 states;			/* enum policy_state, any of them */
	__u8 reason;			/* HIT: it may be learned, whatever the rules behind say */
	__u8 counter;			/* enum policy_counter: it fits while that is at most until */
	__u8 direction;			/* of the counter: 0 original, 1 reply, 2 the sum */
	__u64 until;
};

/* Written while the other one is in use. */
struct policy_bank {
	__u32 rules;			/* how many of rule[] there are */
	__u32 marked;			/* only connections with connmark & mask == value */
	__u32 value, mask;
	struct policy_rule rule[POLICY_RULES];
};

struct policies {
	__u32 bank;			/* which of the two counts, 0 or 1 */
	__u32 unread;			/* the ruleset changed, and nobody knows what is in it: nothing is learned */
	__u32 zero[2];
	struct policy_bank banks[2];
};

/* The groups that a port is in, for either bank. */
struct member {
	__u32 groups[2];
};

_Static_assert((int)REASONS < (int)TALLY - 1, "tally");
_Static_assert(sizeof(struct flow_key) == 16, "flow_key");
_Static_assert(sizeof(struct sighting) == SIGHTING_SIZE, "sighting");
_Static_assert(sizeof(struct slot) == SLOT_SIZE, "slot");
_Static_assert(__builtin_offsetof(struct slot, saddr) == 64, "line 1");
_Static_assert(__builtin_offsetof(struct slot, in6) == 128, "line 2");
_Static_assert(sizeof(struct form) == 64, "form");
_Static_assert(sizeof(struct sample) == 64, "sample");

#endif
