// SPDX-License-Identifier: Apache-2.0

package mpls

// pageHead is what stands above the tables; the argument is the kernel's release.
const pageHead = `# MPLS conformance

What a label switching router is held to, case by case: frames go in at its ports, and what comes out is compared with what
the RFCs say, byte by byte; so are the counters, where the router tells some. The cases are those of ` + "`test/mpls`" + `, grouped by
rule. Both columns are what was found, by the same cases: shunt is told by ` + "`shunt mpls`" + `, the kernel, which is %s in a virtual
machine, by ` + "`ip -f mpls route`" + ` and ` + "`ip route … encap mpls`" + `.

` + "```sh" + `
make conformance                                          # write this page anew, with the kernel run in its virtual machine
go test -count=1 -v ./test/mpls -run TestConformance      # shunt alone, or other than this page: fails
` + "```" + `

| | |
|---|---|
| pass | what came out, and when nothing was to come out that, is right to the byte |
| pass, otherwise | it does something else that the RFCs allow |
| FAIL | it does not; words say in what. *Dropped in silence*: nothing came out, no ICMP error either; *counted* are the kernel's own counters (` + "`ip stats show group afstats`" + `) |
| not offered | the router cannot be told to do it, or keeps no such counters |
| left out | shunt does not do it yet |

The kernel is told what helps it: ` + "`net.mpls.conf.lo.input=1`" + `, or nothing that it pops is looked up again, and TTL models by ` + "`ttl-propagate`" + ` and
` + "`encap mpls … ttl`" + `.

## Another router

The suite runs against any router between two interfaces of one machine, here ` + "`eth1`" + ` on the link to the router's port A and
` + "`eth2`" + ` on that to B, as root. It says nothing but the frames of the cases: no ARP, no neighbour discovery.

` + "```sh" + `
go test -count=1 -v ./test/mpls -run TestConformance -router none -a eth1 -b eth2 -mac-a MAC -mac-b MAC -configure ./told
` + "```" + `

* ` + "`-mac-a`, `-mac-b`" + `: the MACs of the router's ports.
* The router has 198.18.0.1/24 and 2001:2:0:18::1/64 at A, 198.19.0.1/24 and 2001:2:0:19::1/64 at B, and knows for good that .2 and ::2
  of these networks have the MACs of ` + "`eth1` and `eth2`" + `. It forwards IPv4 and IPv6. B's MTU is 1500, A's at least 2000.
* ` + "`-configure`" + ` names a program that is run before each case, with the case as JSON on its stdin: rule, clause, name; label spaces
  of the ports; routes; the configuration in the words of ` + "`shunt mpls`" + ` and, where it has such, of iproute2 (@A and @B are the
  ports); frames in and out, as hex and in words. The router must then be configured for that case and no other. Besides, a frame that comes
  in at A with label 900000 must go out by B with 900001: it is sent behind each case, to know when all is over. Without a program
  the JSON is printed.
* Interfaces should not change frames: ` + "`ethtool -K eth1 rxvlan off gro off`" + `. Frames that a wire padded to 60 bytes are known.
* A part: ` + "`-run 'TestConformance/^T5$'`" + `; without what needs the words of a list: ` + "`-without icmp,fragment,vlan`" + `; longer ways: ` + "`-patience 5s`" + `.

## Totals

`
