// SPDX-License-Identifier: Apache-2.0

// Package lfib keeps the label forwarding information base of a label switching router: what
// RFC 3031 calls ILM, NHLFE and FTN, with the maps, and the label spaces of ports, that go
// with them. It is plain data and plain rules: no socket, no clock but for the time of an
// event, no BPF. The daemon owns a Table, changes it by the lines that people and protocols
// write, and gives the outcome to the data path.
//
//   - Tables. An ILM entry leads a label of a label space to an NHLFE, an FTN entry a prefix.
//     An NHLFE is a list of instructions that is carried out in order, and ends in one that
//     says where the packet goes: send, peek, forward, by-tc, by-dscp, by-hash, deliver, drop.
//   - Grammar. Parse reads a line, Change.String writes it. There is no other one: command
//     line, API, events and Save all speak it.
//   - Transactions. Apply makes all of its changes or none, in their order, each on what the
//     ones before it made. What refers to something is counted from both ends, so nothing
//     that is referred to can go, nothing refers in circles, and no change but a refused
//     deletion costs more than what it reaches.
//   - Closed form. A data path cannot run lists of any length. Table.Form makes of a list,
//     and of those that it forwards to, P pops, an optional swap, Q pushes, writes to the
//     header in between, and an end. See Form for the order in which it is carried out.
//   - Oracle. Table.Switch and Table.Impose carry out the lists themselves, slowly, step by
//     step, on the bytes of a packet. The data path is judged by them.
//
// # What an instruction means
//
// A push and a later pop of what it pushed are nothing. A pop directly followed by a push
// exposes nothing and is a swap, also where a forward stands between them; swap is no more
// than that pop and push. Implicit null (3) is never on the wire: push 3 is nothing, and so
// swap 3 is pop (RFC 3032 §2.1). A choice (by-tc, by-dscp, by-hash) is like a look-up: it
// sees what the pops before it exposed, and what follows it begins anew there.
//
// TTL and TC are those of RFC 3443 and RFC 3270, in the model of the NHLFE that pops. A
// uniform pop copies TTL and TC to the header that it exposes, an IP header's DSCP only if
// its class (DSCP >> 3) differs; the other models leave that header alone. What is sent has
// one TTL step taken from it. A packet whose last step was a pop, at the penultimate hop,
// has the TTL of the popped label checked too, and in the short pipe model the exposed TTL
// is neither checked nor changed (RFC 3443 §3.5). The IP TTL is never raised: where RFC 3443
// replaces it, the lower one stays. Delivery is not forwarding, and checks no TTL.
//
// The explicit nulls have no need of an entry, and are popped in the uniform model: at the
// bottom for delivery, elsewhere to look up what is beneath in the same space (RFC 4182).
//
// by-tc goes by the TC that the label had when it was looked up, that is before the pops
// (RFC 3270 §2.6.2); behind a short pipe pop by that of the exposed header (§2.6.2.1). A value
// that a map does not name is mapped to 0, as RFC 3270 §3.2.1 wants it of what is not
// configured.
//
// # Limits
//
// A packet enters at most MaxDepth NHLFEs: by its label or prefix, then by peek, by the
// explicit nulls that are popped without an entry, and by choices. A list pops at most
// MaxDepth labels and pushes at most MaxPush. No more than MaxForwards NHLFEs forward to one
// another, and a list that pushes before it chooses makes at most MaxForms forms. A Table is
// not for two goroutines at once. An NHLFE of three instructions takes about 600 bytes
// of memory, an ILM entry about 70.
package lfib
