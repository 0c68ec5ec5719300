// SPDX-License-Identifier: Apache-2.0

// Package exercise runs the shipped programs on chosen frames and chosen state, and
// reads back everything they did.
//
// A [Rig] is one loaded data path in the router of a lab of its own: client, router
// and server (internal/lab), programs attached, no rules. There are two ways to make
// it work. [Rig.Run] puts one frame through one program by BPF_PROG_RUN: verdict,
// bytes and context come back, slots and settings are written beforehand with
// [Rig.Put] and [Rig.Edit]. [Rig.Tap] sends and receives raw frames at the ends of
// the two wires, for all that needs the kernel's own work in between. Either way
// [Rig.Count] returns every counter of every stage, so that a test can state the
// whole difference a packet made, and not only the one counter it was after.
//
// What a test expects comes from here too, made in the slow and obvious way and
// without a line of bpf/: [Packet] builds frames with whole checksums, [Learned] says
// which slot a pair of frames must lead to, [Hash.Buckets] where a key belongs.
//
// Limits: BPF_PROG_RUN gives an skb a socket, so nothing is learned from one (rule 3):
// TC egress beyond that check is exercised by the taps. Root only. The path tests and
// the tests of the data path call it.
package exercise
