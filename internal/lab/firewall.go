// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Topology is a client, a router and a server:
//
//	c: eth0 ────── lan :r: wan ────── eth0 :s
//	.2   198.18.0.0/24     198.19.0.0/24   .2
//	::2  2001:2:0:18::/64  2001:2:0:19::/64  ::2
//
// The router is .1 and ::1 on both sides, and the only way between them. The
// addresses are those set aside for tests of this kind (RFC 5735, RFC 5180).
type Topology struct {
	*Lab
	Client, LAN, WAN, Server End
}

// NAT says what the router's rules rewrite.
type NAT string

// The kinds of NAT. Those for IPv4 leave IPv6 as plain routing, and NAT66 the
// other way round; DNAT and the hairpin do both families.
const (
	NATNone       NAT = "none"
	NATMasquerade NAT = "masquerade" // client's IPv4 leaves with the router's address
	NATSource     NAT = "snat"       // ... with SNATAddress
	NATDest       NAT = "dnat"       // what comes to the router from the server goes to the client
	NATDestPort   NAT = "dnat-port"  // ... if TCP or UDP to PublicPort, and to ServicePort then
	NAT66         NAT = "nat66"      // client's IPv6 leaves with the router's address
	NATHairpin    NAT = "hairpin"    // client to PublicPort of the router's wan address: back to the client's second address
)

// Ports of NATDestPort and NATHairpin.
const (
	PublicPort  = 8080
	ServicePort = 5201
)

// Addresses beside the ones of the four ends.
var (
	SNATAddress = netip.MustParseAddr("198.19.0.100")
	// Second addresses of the client, where a hairpin comes back to.
	Second4 = netip.MustParseAddr("198.18.0.100")
	Second6 = netip.MustParseAddr("2001:2:0:18::100")
	// The first of 126 addresses that the router reaches by way of the client:
	// sources for traffic from many hosts that is to be answered.
	Behind4 = netip.MustParseAddr("198.18.0.128")
	Behind6 = netip.MustParseAddr("2001:2:0:18::8000")
)

// FirewallOptions says what kind of firewall the router is. The zero value
// routes both families between wires, without NAT.
type FirewallOptions struct {
	Name       string // of the lab; "" means "firewall"
	Kept       bool   // made by NewKept, for Keep
	NAT        NAT
	Fillers    int  // rules ahead of the accept, none of which ever matches
	Open       bool // no rules at all: then conntrack is not in use, unless NAT needs it
	Flowtable  bool // the kernel's own software fast path, in the same rules
	Offloads   Offloads
	MTU        int  // bytes, 0: 1500
	Queues     int  // of each veth, the n-th for CPU n; 0: one
	Neighbours bool // permanent ones everywhere, so that no ARP is sent
}

// Firewall makes a lab with a stateful firewall between client and server: the
// forward policy is drop, replies are accepted, and so is what comes from the
// client's side or was sent to it by a DNAT rule.
func Firewall(o FirewallOptions) (*Topology, error) {
	if o.Name == "" {
		o.Name = "firewall"
	}
	open := New
	if o.Kept {
		open = NewKept
	}
	l, err := open(o.Name)
	if err != nil {
		return nil, err
	}
	t := &Topology{Lab: l}
	if err := t.build(o); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return t, nil
}

// FindFirewall opens a kept firewall lab by its name.
func FindFirewall(name string) (*Topology, error) {
	l, err := Find(name)
	if err != nil {
		return nil, err
	}
	var spaces [3]*NS
	for i, role := range roles {
		if spaces[i], err = l.NS(role); err != nil {
			return nil, err
		}
	}
	t := &Topology{Lab: l}
	t.place(spaces[0], spaces[1], spaces[2])
	return t, nil
}

var roles = []string{"c", "r", "s"}

// place says which end is where and what it is called.
func (t *Topology) place(c, r, s *NS) {
	end := func(n *NS, device string, net4 byte, host byte) End {
		return End{
			NS: n, Device: device,
			MAC: net.HardwareAddr{2, 0, 0, 0, net4, host},
			V4:  netip.PrefixFrom(netip.AddrFrom4([4]byte{198, net4, 0, host}), 24),
			V6:  netip.MustParsePrefix(fmt.Sprintf("2001:2:0:%d::%d/64", net4, host)),
		}
	}
	t.Client = end(c, "eth0", 18, 2)
	t.LAN = end(r, "lan", 18, 1)
	t.WAN = end(r, "wan", 19, 1)
	t.Server = end(s, "eth0", 19, 2)
}

func (t *Topology) build(o FirewallOptions) error {
	spaces, err := t.Namespaces(roles...)
	if err != nil {
		return err
	}
	t.place(spaces[0], spaces[1], spaces[2])
	if err := t.connect(t.Client, t.LAN, o.Offloads, o.MTU, max(o.Queues, 1)); err != nil {
		return err
	}
	if err := t.connect(t.Server, t.WAN, o.Offloads, o.MTU, max(o.Queues, 1)); err != nil {
		return err
	}
	if err := t.route(); err != nil {
		return err
	}
	if o.NAT == NATSource {
		if err := t.WAN.NS.IP(fmt.Sprintf("address add %s/32 dev wan", SNATAddress)); err != nil {
			return err
		}
	}
	if o.NAT == NATHairpin {
		if err := t.second(); err != nil {
			return err
		}
	}
	if o.Neighbours {
		for _, p := range [][2]End{{t.Client, t.LAN}, {t.LAN, t.Client}, {t.WAN, t.Server}, {t.Server, t.WAN}} {
			if err := p[0].Know(p[1]); err != nil {
				return err
			}
		}
	}
	ruleset, err := t.ruleset(o)
	if err != nil {
		return err
	}
	return t.LAN.NS.NFT(ruleset)
}

// route sends everything through the router, and what is behind the client to it.
func (t *Topology) route() error {
	for key, value := range map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"} {
		if err := t.LAN.NS.Sysctl(key, value); err != nil {
			return err
		}
	}
	for _, p := range [][2]End{{t.Client, t.LAN}, {t.Server, t.WAN}} {
		host, router := p[0], p[1]
		err := host.NS.IP(
			fmt.Sprintf("route add default via %s", router.V4.Addr()),
			fmt.Sprintf("route add default via inet6 %s", router.V6.Addr()))
		if err != nil {
			return err
		}
	}
	return t.LAN.NS.IP(
		fmt.Sprintf("route add %s/25 via %s", Behind4, t.Client.V4.Addr()),
		fmt.Sprintf("route add %s/113 via inet6 %s", Behind6, t.Client.V6.Addr()))
}

// second gives the client the addresses at which a hairpin ends.
func (t *Topology) second() error {
	return t.Client.NS.IP(
		fmt.Sprintf("address add %s/24 dev eth0", Second4),
		fmt.Sprintf("address add %s/64 dev eth0", Second6))
}

// ruleset is the router's nftables configuration.
func (t *Topology) ruleset(o FirewallOptions) (string, error) {
	nat, err := t.natRules(o.NAT)
	if err != nil || o.Open {
		return nat, err
	}
	var b strings.Builder
	b.WriteString("table inet filter {\n")
	if o.Flowtable {
		b.WriteString("\tflowtable fast {\n\t\thook ingress priority filter; devices = { lan, wan };\n\t}\n")
	}
	b.WriteString("\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;\n")
	if o.Flowtable {
		b.WriteString("\t\tmeta l4proto { tcp, udp } flow add @fast\n")
	}
	for i := range o.Fillers {
		// Shared address space (RFC 6598), which nobody here has.
		fmt.Fprintf(&b, "\t\tip saddr 100.%d.%d.%d drop\n", 64+i>>16&63, i>>8&255, i&255)
	}
	b.WriteString("\t\tct state established,related accept\n\t\tiifname \"lan\" accept\n")
	if o.NAT == NATDest || o.NAT == NATDestPort {
		b.WriteString("\t\tct status dnat accept\n")
	}
	b.WriteString("\t}\n}\n")
	return b.String() + nat, nil
}

// natRules is the table for one kind of NAT, or "".
func (t *Topology) natRules(kind NAT) (string, error) {
	var pre, post []string
	wan4, wan6 := t.WAN.V4.Addr(), t.WAN.V6.Addr()
	switch kind {
	case NATNone, "":
		return "", nil
	case NATMasquerade:
		post = []string{`oifname "wan" meta nfproto ipv4 masquerade`}
	case NATSource:
		post = []string{fmt.Sprintf(`oifname "wan" snat ip to %s`, SNATAddress)}
	case NAT66:
		post = []string{`oifname "wan" meta nfproto ipv6 masquerade`}
	case NATDest:
		pre = []string{
			fmt.Sprintf(`iifname "wan" ip daddr %s dnat ip to %s`, wan4, t.Client.V4.Addr()),
			fmt.Sprintf(`iifname "wan" ip6 daddr %s dnat ip6 to %s`, wan6, t.Client.V6.Addr())}
	case NATDestPort:
		pre = []string{
			fmt.Sprintf(`iifname "wan" ip daddr %s meta l4proto { tcp, udp } th dport %d dnat ip to %s:%d`, wan4, PublicPort, t.Client.V4.Addr(), ServicePort),
			fmt.Sprintf(`iifname "wan" ip6 daddr %s meta l4proto { tcp, udp } th dport %d dnat ip6 to [%s]:%d`, wan6, PublicPort, t.Client.V6.Addr(), ServicePort)}
	case NATHairpin:
		pre = []string{
			fmt.Sprintf(`iifname "lan" ip daddr %s meta l4proto { tcp, udp } th dport %d dnat ip to %s:%d`, wan4, PublicPort, Second4, ServicePort),
			fmt.Sprintf(`iifname "lan" ip6 daddr %s meta l4proto { tcp, udp } th dport %d dnat ip6 to [%s]:%d`, wan6, PublicPort, Second6, ServicePort)}
		post = []string{`iifname "lan" oifname "lan" masquerade`}
	default:
		return "", fmt.Errorf("lab: unknown NAT %q", kind)
	}
	return fmt.Sprintf(`table inet nat {
	chain prerouting {
		type nat hook prerouting priority dstnat;
		%s
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		%s
	}
}
`, strings.Join(pre, "\n\t\t"), strings.Join(post, "\n\t\t")), nil
}
