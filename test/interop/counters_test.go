// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// counters are what a router has counted, by names of this file.
type counters map[string]uint64

// kernelCounters are struct mpls_link_stats of the two ports.
func (r *router) kernelCounters() (counters, error) {
	text, err := r.lan.NS.Run("ip", "-j", "stats", "show", "group", "afstats", "subgroup", "mpls")
	if err != nil {
		return nil, err
	}
	var devices []struct {
		Name  string                       `json:"ifname"`
		Stats map[string]map[string]uint64 `json:"mpls_stats"`
	}
	if err := json.Unmarshal([]byte(text), &devices); err != nil {
		return nil, fmt.Errorf("ip stats show: %w", err)
	}
	all := counters{}
	for _, d := range devices {
		for way, stats := range d.Stats {
			for name, n := range stats {
				all[d.Name+" "+way+" "+name] = n
			}
		}
	}
	return all, nil
}

// shuntCounters are those of RFC 3813, of segments.
func (r *router) shuntCounters() (counters, error) {
	text, err := r.shunt("", "mpls", "stats", "--json")
	if err != nil {
		return nil, err
	}
	var stats struct {
		In []struct {
			Label    int
			Packets  uint64 `json:"mplsInSegmentPerfPackets"`
			Octets   uint64 `json:"mplsInSegmentPerfHCOctets"`
			Errors   uint64 `json:"mplsInSegmentPerfErrors"`
			Discards uint64 `json:"mplsInSegmentPerfDiscards"`
		} `json:"in_segments"`
		Out []struct {
			NHLFE    int
			Packets  uint64 `json:"mplsOutSegmentPerfPackets"`
			Octets   uint64 `json:"mplsOutSegmentPerfHCOctets"`
			Errors   uint64 `json:"mplsOutSegmentPerfErrors"`
			Discards uint64 `json:"mplsOutSegmentPerfDiscards"`
		} `json:"out_segments"`
	}
	if err := json.Unmarshal([]byte(text), &stats); err != nil {
		return nil, fmt.Errorf("shunt mpls stats --json: %w", err)
	}
	all := counters{}
	for _, s := range stats.In {
		name := fmt.Sprintf("in %d ", s.Label)
		all[name+"packets"], all[name+"bytes"], all[name+"errors"], all[name+"dropped"] = s.Packets, s.Octets, s.Errors, s.Discards
	}
	for _, s := range stats.Out {
		name := fmt.Sprintf("out %d ", s.NHLFE)
		all[name+"packets"], all[name+"bytes"], all[name+"errors"], all[name+"dropped"] = s.Packets, s.Octets, s.Errors, s.Discards
	}
	return all, nil
}

func (r *router) counters() (counters, error) {
	if r.kind == shunt {
		return r.shuntCounters()
	}
	return r.kernelCounters()
}

// look is what the routers say at one moment.
type look struct {
	counters [3]counters
	repeated uint64 // packets that a shunt repeated as IP, before these got their labels or after they lost them
}

func (p *path) look() (l look, err error) {
	for i, r := range p.routers {
		var n uint64
		if l.counters[i], err = r.counters(); err == nil && r.kind == shunt {
			n, err = r.repeated()
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", r, err)
		}
		l.repeated += n
	}
	return l, nil
}

// expect adds what a router counts for a packet of an LSP that has so many bytes of IP.
func (r *router) expect(all counters, l lsp, octets uint64) {
	add := func(name string, labels int) {
		all[name+" packets"]++
		all[name+" bytes"] += octets + 4*uint64(labels)
	}
	switch {
	case r.kind == kernel:
		if r.place != ingress {
			add("lan rx", l.labels)
		}
		if r.place != egress {
			add("wan tx", l.labels)
		}
	case r.place == egress:
		for _, label := range l.ends() {
			add(fmt.Sprintf("in %d", label), l.labels) // of a packet as it came in
		}
	default:
		if r.place == transit {
			add(fmt.Sprintf("in %d", l.top()), l.labels)
		}
		add(fmt.Sprintf("out %d", l.top()), l.labels)
	}
}

// differ says which of them rose by something else than wanted. But for those of lo: by that
// goes what the kernel looks up again.
func (c counters) differ(before, want counters) string {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if rose := c[name] - before[name]; rose != want[name] && !strings.HasPrefix(name, "lo ") {
			return fmt.Sprintf("counter %q rose by %d, want %d", name, rose, want[name])
		}
	}
	for name := range want {
		if _, ok := c[name]; !ok {
			return fmt.Sprintf("there is no counter %q", name)
		}
	}
	return ""
}

// repeated is how many packets a shunt's flow table has sent on.
func (r *router) repeated() (uint64, error) {
	text, err := r.shunt("", "status", "--json")
	if err != nil {
		return 0, err
	}
	var status struct{ Counters map[string]map[string]uint64 }
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return 0, fmt.Errorf("shunt status --json: %w", err)
	}
	return status.Counters["xdp"]["hit"], nil
}
