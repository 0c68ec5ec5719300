// SPDX-License-Identifier: Apache-2.0

// Package export gives the daemon's figures to Prometheus: names, units and labels by its
// conventions, through its own client library.
//
// The daemon hands in a function that reads its figures; each scrape calls it once. It must be
// cheap, whatever the number of flows: what has to be counted flow by flow is counted elsewhere,
// at leisure, and only shown here. Limit: a counter that is zero and that has a label for the
// reason or the kind is left out until it counts.
package export

import (
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"shunt/internal/api"
)

// Figures are what is known at one moment. Counters only grow while the data path lives.
type Figures struct {
	Version, Kernel string
	Started         time.Time
	Beaten          time.Time // last heartbeat that the data path saw
	Paused          bool
	Threshold       uint32
	Lease           time.Duration // with the daemon dead
	LeaseLive       time.Duration // while it lives
	Reloaded        time.Time     // when the configuration in force was read
	Refused         bool          // the last one that was read later was not applied

	Ports      []Port
	Learned    uint64
	Renewed    uint64            // leases, with the same rewrite
	Changed    uint64            // leases, with another rewrite
	Mismatches uint64            // of those, not announced
	Changes    map[string]uint64 // announced by the kernel, by kind
	Policed    map[string]uint64 // packets, by reason

	Slots   int            // of the flow table
	Flows   map[string]int // by state
	Counted time.Time      // when the flows were; zero: not yet
}

// Port is an interface that shunt works on, or is to.
type Port struct {
	api.Port
	Packets map[string]map[string]uint64 // by stage, then reason
}

// family is one metric.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) family {
	return family{prometheus.NewDesc("shunt_"+name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) family {
	return family{prometheus.NewDesc("shunt_"+name, help, labels, nil), prometheus.GaugeValue}
}

var (
	buildInfo = gauge("build_info", "1, labelled by the versions of the daemon, the kernel and Go.", "version", "kernel", "goversion")
	started   = gauge("start_time_seconds", "When the daemon began, in seconds since 1970.")
	beat      = gauge("heartbeat_age_seconds", "Time since the data path saw the daemon's last heartbeat.")
	paused    = gauge("paused", "1 while every packet is left to the kernel by an operator's pause.")
	threshold = gauge("threshold_packets", "Packets of a flow before it is learned.")
	lease     = gauge("lease_seconds", "How long an entry may be used unproven, with the daemon alive or dead.", "daemon")
	reloaded  = gauge("config_last_reload_success_timestamp_seconds", "When the configuration in force was read, in seconds since 1970.")
	reloadOK  = gauge("config_last_reload_successful", "0 if the configuration that was read last was refused.")

	repeated   = counter("repeated_packets_total", "Packets that were forwarded by the fast path, by the port they came in by and the path.", "port", "path")
	punted     = counter("punted_packets_total", "Packets that were left to the kernel, by the port they came in by.", "port")
	packets    = counter("packets_total", "Packets by port, stage and the reason by which they left it; a packet may be counted once at each stage.", "port", "stage", "reason")
	policed    = counter("policed_packets_total", "Packets that were dropped for being over the rate of their reason.", "reason")
	redirected = counter("redirected_frames_total", "Frames that XDP sent to a port, by what became of them: sent, dropped (queue full) or refused (by the driver).", "port", "outcome")
	portState  = gauge("port_state", "1 for the state that a port is in.", "port", "state")
	portInfo   = gauge("port_info", "1, labelled by the driver and the qdisc of a port.", "port", "driver", "qdisc")

	slots      = gauge("flow_slots", "Slots of the flow table.")
	flows      = gauge("flows", "Slots of the flow table that are in use, by the state of their flow.", "state")
	counted    = gauge("flows_counted_timestamp_seconds", "When the flows were counted last, in seconds since 1970.")
	learned    = counter("learned_flows_total", "Flows that were learned.")
	renewed    = counter("renewed_leases_total", "Leases that the kernel proved, by what it did: the same as before, or something changed.", "result")
	mismatches = counter("mismatches_total", "Renewals that found the kernel doing something else without having announced a change.")
	changes    = counter("changes_total", "Changes that the kernel announced, by kind.", "kind")

	families = []family{buildInfo, started, beat, paused, threshold, lease, reloaded, reloadOK, repeated, punted, packets, policed,
		redirected, portState, portInfo, slots, flows, counted, learned, renewed, mismatches, changes}
)

// always are the reasons that are worth an alert: they are there with zero, too, so that the first
// packet is an increase.
var always = []string{"hit", "table_full", "source_full"}

// Handler answers scrapes with what read returns, and with the figures of this process.
func Handler(read func() (Figures, error)) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector(read), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4, EnableOpenMetrics: true}))
	return mux
}

// collector implements prometheus.Collector.
type collector func() (Figures, error)

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	f, err := c()
	if err != nil {
		out <- prometheus.NewInvalidMetric(packets.desc, err)
		return
	}
	s := sink(out)
	s.daemon(&f)
	for i := range f.Ports {
		s.port(&f.Ports[i])
	}
	s.put(learned, float64(f.Learned))
	s.put(renewed, float64(f.Renewed), "same")
	s.put(renewed, float64(f.Changed), "changed")
	s.put(mismatches, float64(f.Mismatches))
	s.counts(changes, f.Changes)
	s.counts(policed, f.Policed)
	s.put(slots, float64(f.Slots))
	if !f.Counted.IsZero() {
		s.put(counted, seconds(f.Counted))
		for _, state := range []string{api.FlowSeen, api.FlowArmed, api.FlowExpired, api.FlowOld, api.FlowClosed} {
			s.put(flows, float64(f.Flows[state]), state)
		}
	}
}

type sink chan<- prometheus.Metric

func (s sink) put(f family, value float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

func (s sink) counts(f family, by map[string]uint64) {
	for label, n := range by {
		s.put(f, float64(n), label)
	}
}

func (s sink) daemon(f *Figures) {
	s.put(buildInfo, 1, f.Version, f.Kernel, runtime.Version())
	s.put(started, seconds(f.Started))
	s.put(beat, time.Since(f.Beaten).Seconds())
	s.put(paused, one(f.Paused))
	s.put(threshold, float64(f.Threshold))
	s.put(lease, f.Lease.Seconds(), "dead")
	s.put(lease, f.LeaseLive.Seconds(), "alive")
	s.put(reloaded, seconds(f.Reloaded))
	s.put(reloadOK, one(!f.Refused))
}

func (s sink) port(p *Port) {
	for _, state := range []string{api.PortXDPAndTC, api.PortTC, api.PortRefused, api.PortAbsent} {
		s.put(portState, one(p.State == state), p.Name, state)
	}
	if p.State == api.PortAbsent {
		return
	}
	s.put(portInfo, 1, p.Name, p.Driver, p.Qdisc)
	s.put(repeated, float64(p.Packets[api.StageXDP]["hit"]), p.Name, api.WayXDP)
	s.put(repeated, float64(p.Packets[api.StageTCIngress]["hit"]), p.Name, api.WayTC)
	s.put(punted, float64(p.Punts), p.Name)
	for stage, reasons := range p.Packets {
		for reason, n := range reasons {
			if n > 0 && !slices.Contains(always, reason) {
				s.put(packets, float64(n), p.Name, stage, reason)
			}
		}
		for _, reason := range always {
			s.put(packets, float64(reasons[reason]), p.Name, stage, reason)
		}
	}
	s.put(redirected, float64(p.Sent), p.Name, "sent")
	s.put(redirected, float64(p.Drops), p.Name, "dropped")
	s.put(redirected, float64(p.Errors), p.Name, "refused")
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
