// SPDX-License-Identifier: Apache-2.0

// Package dataplane loads, attaches and reads the programs in bpf/.
//
// It is the only package (with those below it) that knows the BPF library. It keeps no
// decisions: the daemon says which ports get which programs (Apply), and reads flows,
// counters and events. Everything is pinned under one bpffs directory, so that the data
// path outlives the process:
//
//	DIR/maps/NAME            the maps of bpf/maps.h
//	DIR/links/IFINDEX-KIND   one link per attached program: xdp, ingress, egress
//	DIR/links/0-NAME         one per tracepoint program
//
// Open takes a directory over where the ABI version and the table size allow, replacing
// the programs inside the links one by one, without a moment in which none is attached;
// else it removes what is there and starts afresh. The caller holds a lock that keeps two
// processes out of one directory.
package dataplane
