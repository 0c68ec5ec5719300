// SPDX-License-Identifier: Apache-2.0

// Package traffic makes frames at a few million a second, takes them in again
// and checks them: the lab's generator and sink.
//
// A [Generator] writes frames in an XDP program that BPF_PROG_RUN calls in a
// loop, and sends them out of a device by XDP redirect; no socket and no qdisc
// is in the way. Each frame carries a mark: its flow and its number within the
// flow. A [Sink] is an XDP program on the device where the frames end. It knows
// them by the mark alone, so NAT may rewrite their headers, counts them per
// flow, and verifies every n-th one byte by byte. [Redirect] forwards frames
// unread, which is what benchmarks compare with.
//
// The programs are in bpf/traffic.bpf.c. Benchmarks and tests call this package,
// the router does not. A peer loses redirected frames in silence unless it has
// NAPI (on a veth: GRO, or an XDP program), so senders compare what was sent
// with what was sunk. TCP frames are acknowledgements with data and one and the
// same sequence number: GRO leaves them alone, a connection they are not.
package traffic
