// SPDX-License-Identifier: Apache-2.0

// Package bench measures shunt in a lab, against the kernel alone and against the most
// that the machine can do.
//
// The measuring core is the rig: a firewall lab (client, router, server in namespaces)
// with the generator, the sink and a real daemon, which it switches between four modes:
// nothing attached, attached with a threshold out of reach, fast, and an empty XDP
// redirect as the limit. Generator, router and sink share one core, so frames per second
// are the reciprocal of what all three cost together. Modes are taken in turn within a
// round, so that a machine that drifts does so for all alike; ratios are formed within a
// round, and the figure reported is the median of the rounds, with its spread.
//
// Every measured phase is audited: what was sent arrived, whole, and each frame that
// arrived was either a hit, by shunt's counters, or forwarded, by the kernel's
// (IpForwDatagrams). A phase that does not add up is an error and no figure. Frames out of
// order are counted and judged.
//
// Instructions are counted where time is made of them: in a virtual machine with one
// processor, whose clock goes on by a nanosecond with each instruction. There the program
// runs itself once more (CountInside), with the same rig and the same daemon.
//
// Routers that switch labels are measured by LSR, at three rigs side by side, and by Chain, which has
// no generator but one host that pings another: there a round trip's time is the figure.
//
// `shunt bench` and `shunt lab` call it and print its reports. Limits: it needs root and
// what package lab needs, iperf3 for TCP; it measures veth, where a wire would be a
// driver; figures of one machine say nothing about another, ratios say a little.
package bench
