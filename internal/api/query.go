// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"shunt/internal/reason"
)

// FlowQuery names a conversation.
type FlowQuery struct {
	Source, Destination netip.AddrPort
	Proto               uint8 // IP protocol number
	AnyID               bool  // ports, ICMP id, key and SPI are not asked for
}

// FlowSyntax is what ParseFlow reads, for help texts and errors.
const FlowSyntax = "ADDR:PORT ADDR:PORT/tcp, [ADDR6]:PORT [ADDR6]:PORT/udp, ADDR[:ID] ADDR/icmp or ADDR ADDR/PROTO"

var errFlowSyntax = errors.New("write " + FlowSyntax)

// protoNames are the protocols called by name; all others are called by number.
var protoNames = map[uint8]string{
	1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 47: "gre", 50: "esp", 51: "ah",
	58: "icmp6", 132: "sctp", 136: "udplite",
}

// ProtoName is the word for an IP protocol number: "tcp", "gre", or "89".
func ProtoName(proto uint8) string {
	if name, ok := protoNames[proto]; ok {
		return name
	}
	return strconv.Itoa(int(proto))
}

// ProtoNumber is the inverse of ProtoName. It also takes "icmpv6" and every number
// from 0 to 255.
func ProtoNumber(name string) (uint8, error) {
	name = strings.ToLower(name)
	if name == "icmpv6" {
		return 58, nil
	}
	for number, known := range protoNames {
		if known == name {
			return number, nil
		}
	}
	number, err := strconv.ParseUint(name, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q: use a number from 0 to 255 or a name such as tcp, udp, icmp, icmp6, gre, esp", name)
	}
	return uint8(number), nil
}

// ParseFlow reads a conversation as people write it; see FlowSyntax. Words may come as
// one string or several. The error is one line that tells the syntax.
func ParseFlow(words ...string) (FlowQuery, error) {
	fields := strings.Fields(strings.Join(words, " "))
	if len(fields) != 2 {
		return FlowQuery{}, errFlowSyntax
	}
	to, name, ok := strings.Cut(fields[1], "/")
	if !ok {
		return FlowQuery{}, fmt.Errorf("%q names no protocol; %w", fields[1], errFlowSyntax)
	}
	proto, err := ProtoNumber(name)
	if err != nil {
		return FlowQuery{}, err
	}
	q := FlowQuery{Proto: proto}
	var sourceID, destID bool
	if q.Source, sourceID, err = parseEnd(fields[0]); err != nil {
		return FlowQuery{}, err
	}
	if q.Destination, destID, err = parseEnd(to); err != nil {
		return FlowQuery{}, err
	}
	if q.Source.Addr().Is4() != q.Destination.Addr().Is4() {
		return FlowQuery{}, fmt.Errorf("%s and %s are of different families; %w", fields[0], to, errFlowSyntax)
	}
	return q.checkIDs(sourceID, destID)
}

// checkIDs completes a query by what its protocol has in place of ports.
func (q FlowQuery) checkIDs(source, dest bool) (FlowQuery, error) {
	switch {
	case hasPorts(q.Proto):
		if !source || !dest {
			return FlowQuery{}, fmt.Errorf("%s needs a port at both ends; %w", ProtoName(q.Proto), errFlowSyntax)
		}
	case isICMP(q.Proto):
		// People say icmp for both; the addresses tell which.
		q.Proto = 1
		if q.Source.Addr().Is6() {
			q.Proto = 58
		}
		if dest {
			return FlowQuery{}, fmt.Errorf("the id of an echo stands behind the first address; %w", errFlowSyntax)
		}
		q.AnyID = !source
		q.Destination = netip.AddrPortFrom(q.Destination.Addr(), q.Source.Port())
	case source || dest:
		return FlowQuery{}, fmt.Errorf("protocol %s has no ports; %w", ProtoName(q.Proto), errFlowSyntax)
	default:
		q.AnyID = true
	}
	return q, nil
}

// parseEnd reads ADDR, ADDR:PORT, ADDR6, [ADDR6] or [ADDR6]:PORT.
func parseEnd(s string) (end netip.AddrPort, hasPort bool, err error) {
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err == nil {
		end = netip.AddrPortFrom(addr, 0)
	} else if end, err = netip.ParseAddrPort(s); err == nil {
		hasPort = true
	}
	if err != nil || end.Addr().Zone() != "" || end.Addr().Is4In6() {
		return netip.AddrPort{}, false, fmt.Errorf("%q is no address with an optional port; %w", s, errFlowSyntax)
	}
	return end, hasPort, nil
}

func hasPorts(proto uint8) bool {
	switch proto {
	case 6, 17, 33, 132, 136:
		return true
	}
	return false
}

func isICMP(proto uint8) bool { return proto == 1 || proto == 58 }

// String writes the query as ParseFlow reads it.
func (q FlowQuery) String() string {
	source, dest := q.Ends()
	return source + " " + dest
}

// Ends writes the two words of String.
func (q FlowQuery) Ends() (source, dest string) {
	source, dest = q.Source.String(), q.Destination.String()
	if q.AnyID {
		source = q.Source.Addr().String()
	}
	if q.AnyID || isICMP(q.Proto) {
		dest = q.Destination.Addr().String()
	}
	return source, dest + "/" + ProtoName(q.Proto)
}

// Query names the conversation that a flow is a direction of, as it comes in.
func (f *Flow) Query() FlowQuery {
	proto, _ := ProtoNumber(f.Proto) // one that cannot be read shows as protocol 0
	return FlowQuery{f.Source, f.Destination, proto, !hasPorts(proto) && !isICMP(proto)}
}

// Match tells whether a flow is a direction of the conversation. The operator may
// name it as it looks on either side of a NAT, and from either end.
func (q FlowQuery) Match(f *Flow) bool {
	if f.Proto != ProtoName(q.Proto) {
		return false
	}
	if q.matchEnds(f.Source, f.Destination) {
		return true
	}
	return f.Rewrite != nil && q.matchEnds(f.Rewrite.Source, f.Rewrite.Destination)
}

func (q FlowQuery) matchEnds(a, b netip.AddrPort) bool {
	same := func(x, y netip.AddrPort) bool {
		return x == y || q.AnyID && x.Addr() == y.Addr()
	}
	return same(q.Source, a) && same(q.Destination, b) || same(q.Source, b) && same(q.Destination, a)
}

// Values is the query as the parameters of GET /v1/explain.
func (q ExplainQuery) Values() url.Values {
	switch {
	case q.Flow != nil:
		return url.Values{"flow": {q.Flow.String()}}
	case q.Reason != "":
		return url.Values{"reason": {q.Reason}}
	case q.Top != 0:
		return url.Values{"top": {strconv.Itoa(q.Top)}}
	}
	return url.Values{"all": {"1"}}
}

// Check says in one line what is wrong with a query, if anything is.
func (q ExplainQuery) Check() error {
	if q.Top < 0 {
		return fmt.Errorf("top %d: use a number of flows", q.Top)
	}
	if words, _, _ := reason.Words(q.Reason); q.Reason != "" && words == "" {
		return fmt.Errorf("reason %q: no such word; allowed are %s", q.Reason, strings.Join(reason.Names(), ", "))
	}
	return nil
}

func explainQueryFrom(v url.Values) (ExplainQuery, error) {
	const allowed = "use one of flow, reason, top or all=1"
	if len(v) != 1 {
		return ExplainQuery{}, errors.New("what is to be explained? " + allowed)
	}
	var q ExplainQuery
	switch {
	case v.Has("flow"):
		flow, err := ParseFlow(v.Get("flow"))
		return ExplainQuery{Flow: &flow}, err
	case v.Has("reason") && v.Get("reason") != "":
		q.Reason = v.Get("reason")
	case v.Has("top"):
		n, err := strconv.Atoi(v.Get("top"))
		if err != nil || n == 0 {
			return q, fmt.Errorf("top %q: use a number of flows", v.Get("top"))
		}
		q.Top = n
	case v.Get("all") != "1":
		return q, errors.New(allowed)
	}
	return q, q.Check()
}

// Values is the filter as the parameters of GET /v1/flows.
func (f FlowFilter) Values() url.Values {
	v := url.Values{}
	if f.Limit != 0 {
		v.Set("limit", strconv.Itoa(f.Limit))
	}
	for key, value := range map[string]string{"sort": f.Sort, "state": f.State, "port": f.Port} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if f.Live {
		v.Set("live", "1")
	}
	return v
}

// Check says in one line what is wrong with a filter, if anything is.
func (f FlowFilter) Check() error {
	if f.Limit < 0 {
		return fmt.Errorf("limit %d: use a number of flows, or 0 for all", f.Limit)
	}
	if err := oneOf("sort", f.Sort, "", SortPackets, SortBytes, SortAge, SortRate); err != nil {
		return err
	}
	return oneOf("state", f.State, "", FlowSeen, FlowArmed, FlowExpired, FlowOld, FlowClosed)
}

func oneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	words := slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
	return fmt.Errorf("%s %q: allowed are %s", name, value, strings.Join(words, ", "))
}

func flowFilterFrom(v url.Values) (FlowFilter, error) {
	f := FlowFilter{Sort: v.Get("sort"), State: v.Get("state"), Port: v.Get("port")}
	for key := range v {
		if err := oneOf("parameter", key, "limit", "sort", "state", "port", "live"); err != nil {
			return f, err
		}
	}
	if limit := v.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil {
			return f, fmt.Errorf("limit %q: use a number of flows, or 0 for all", limit)
		}
		f.Limit = n
	}
	if live := v.Get("live"); live != "" && live != "1" {
		return f, fmt.Errorf("live %q: use 1, or leave it out", live)
	}
	f.Live = v.Get("live") == "1"
	return f, f.Check()
}
