// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"strings"
)

// Labels of the router's MPLS routes: what comes in with LabelIn goes out with LabelOut. Outer may be
// on top of LabelIn.
const (
	LabelIn    = 100
	LabelOut   = 200
	LabelOuter = 300
)

// MPLS says what the router does to a frame's label stack on the way to the server.
type MPLS string

// The things that can be done to a label.
const (
	MPLSSwap MPLS = "swap" // LabelIn comes in, LabelOut goes out
	MPLSPHP  MPLS = "php"  // LabelIn comes in, plain IP goes out: the penultimate hop
	MPLSPop  MPLS = "pop"  // LabelIn comes in and ends here, the packet is routed: the last hop
	MPLSPush MPLS = "push" // IPv4 to the server comes in, LabelOut goes out

	MPLSPopSwap MPLS = "pop-swap" // LabelOuter comes in and ends here, LabelIn beneath it is swapped
)

// Labels makes the router a label switching router, which the kernel is with mpls_router
// and, to push, mpls_iptunnel. What the error names is what the kernel lacks.
func (t *Topology) Labels(do MPLS) error {
	router, server := t.WAN.NS, t.Server.V4.Addr().String()
	for key, value := range map[string]string{
		"net.mpls.platform_labels":                 "1000", // more than any of these
		"net.mpls.conf." + t.LAN.Device + ".input": "1",
		"net.mpls.conf.lo.input":                   "1",
	} {
		if err := router.Sysctl(key, value); err != nil {
			return fmt.Errorf("%w; MPLS needs the module mpls_router", err)
		}
	}
	via := fmt.Sprintf(" via inet %s dev %s", server, t.WAN.Device)
	swap := fmt.Sprintf("-f mpls route add %d as %d", LabelIn, LabelOut) + via
	// By lo it comes in again, with what was beneath the label.
	routes, ok := map[MPLS][]string{
		MPLSSwap:    {swap},
		MPLSPHP:     {fmt.Sprintf("-f mpls route add %d", LabelIn) + via},
		MPLSPop:     {fmt.Sprintf("-f mpls route add %d dev lo", LabelIn)},
		MPLSPopSwap: {fmt.Sprintf("-f mpls route add %d dev lo", LabelOuter), swap},
		MPLSPush:    {fmt.Sprintf("route add %s/32 encap mpls %d", server, LabelOut) + via},
	}[do]
	if !ok {
		return fmt.Errorf("lab: unknown MPLS %q", do)
	}
	for _, route := range routes {
		if _, err := router.Run(append([]string{"ip"}, strings.Fields(route)...)...); err != nil {
			return err
		}
	}
	return nil
}
