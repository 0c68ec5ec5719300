package lab

import "fmt"

// Labels of the router's MPLS routes: what comes in with LabelIn goes out with LabelOut.
const (
	LabelIn  = 100
	LabelOut = 200
)

// MPLS says what the router does to a frame's label stack on the way to the server.
type MPLS string

// The things that can be done to a label.
const (
	MPLSSwap MPLS = "swap" // LabelIn comes in, LabelOut goes out
	MPLSPop  MPLS = "pop"  // LabelIn comes in, plain IP goes out: the penultimate hop
	MPLSPush MPLS = "push" // IPv4 to the server comes in, LabelOut goes out
)

// Labels makes the router a label switching router, which the kernel is with mpls_router
// and, to push, mpls_iptunnel. What the error names is what the kernel lacks.
func (t *Topology) Labels(do MPLS) error {
	router, server := t.WAN.NS, t.Server.V4.Addr().String()
	for key, value := range map[string]string{
		"net.mpls.platform_labels":                 "1000", // more than LabelOut
		"net.mpls.conf." + t.LAN.Device + ".input": "1",
	} {
		if err := router.Sysctl(key, value); err != nil {
			return fmt.Errorf("%w; MPLS needs the module mpls_router", err)
		}
	}
	via := []string{"via", "inet", server, "dev", t.WAN.Device}
	command := []string{"ip", "-f", "mpls", "route", "add", fmt.Sprint(LabelIn)}
	switch do {
	case MPLSSwap:
		command = append(append(command, "as", fmt.Sprint(LabelOut)), via...)
	case MPLSPop:
		command = append(command, via...)
	case MPLSPush:
		command = append([]string{"ip", "route", "add", server + "/32", "encap", "mpls", fmt.Sprint(LabelOut)}, via...)
	default:
		return fmt.Errorf("lab: unknown MPLS %q", do)
	}
	_, err := router.Run(command...)
	return err
}
