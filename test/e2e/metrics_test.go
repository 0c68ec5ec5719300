// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// TestMetrics: what Prometheus reads is what the far side got, to the packet, by XDP and by TC, and
// what the API says. It is served where the file says, and nowhere without that.
func TestMetrics(t *testing.T) {
	for _, c := range []struct{ mode, path, network string }{{"on", "xdp", "unix"}, {"off", "tc", "tcp"}} {
		t.Run("xdp="+c.mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			at := map[string]string{"unix": filepath.Join(r.Dir(), "metrics.sock"), "tcp": "127.0.0.1:9797"}[c.network]
			file := filepath.Join(t.TempDir(), "shunt.toml")
			base := fmt.Sprintf("port = [\"lan\", \"wan\", \"late*\"]\nxdp = %q\nflows = 4096\n", c.mode)
			r.must(os.WriteFile(file, []byte(base), 0o600))
			r.start(program, "--config", file)
			if _, err := r.scrape(c.network, at); err == nil {
				t.Fatal("metrics are served without being asked for")
			}
			r.must(os.WriteFile(file, []byte(base+fmt.Sprintf("[metrics]\nlisten = %q\n", at)), 0o600))
			r.reload()
			r.eventually("metrics are served after a reload", patience, func() bool { _, err := r.scrape(c.network, at); return err == nil })

			if out, err := r.Client.NS.Run("ping", "-6", "-n", "-c", "3", "-i", "0.2", "-W", "2", r.Server.V6.Addr().String()); err != nil {
				t.Fatalf("ping: %v: %s", err, out)
			}
			before, err := r.scrape(c.network, at)
			r.must(err)
			sink := r.sink(r.Server, 1)
			var sent uint64
			for _, frames := range []struct {
				flows, size int
				from, to    netip.AddrPort
			}{
				{100, 64, netip.AddrPortFrom(r.Client.V4.Addr(), 10000), netip.AddrPortFrom(r.Server.V4.Addr(), 9)},
				{30, 1000, netip.AddrPortFrom(r.Client.V6.Addr(), 10000), netip.AddrPortFrom(r.Server.V6.Addr(), 9)},
				{5, 1500, netip.AddrPortFrom(r.Client.V4.Addr(), 20000), netip.AddrPortFrom(r.Server.V4.Addr(), 4500)},
			} {
				g, err := traffic.NewGenerator(traffic.Config{
					NS: r.Client.NS, Device: r.Client.Device, CPU: 1, Rate: 20000,
					Frames: traffic.Frames{SourceMAC: r.Client.MAC, DestMAC: r.LAN.MAC, Protocol: traffic.UDP, Size: frames.size, Flows: frames.flows,
						Source: frames.from, Dest: frames.to},
				})
				r.must(err)
				r.must(sink.Reset())
				n := r.send(g, 10000).Sent
				r.whole(fmt.Sprintf("%d flows from %v", frames.flows, frames.from), sink, n)
				sent += n
				g.Close()
			}
			after, err := r.scrape(c.network, at)
			r.must(err)
			delta := func(series string) uint64 { return uint64(after[series] - before[series]) }

			// In by lan: repeated or left to the kernel; what came in besides is no datagram of ours.
			byPath := map[string]uint64{}
			for _, path := range []string{"xdp", "tc"} {
				byPath[path] = delta(`shunt_repeated_packets_total{path="` + path + `",port="lan"}`)
			}
			fast := byPath["xdp"] + byPath["tc"]
			kernel := delta(`shunt_punted_packets_total{port="lan"}`)
			for _, other := range []string{"not_ip", "not_host", "not_echo", "extension_header", "ip_options"} {
				kernel -= delta(`shunt_packets_total{port="lan",reason="` + other + `",stage="tc-ingress"}`)
			}
			if fast+kernel != sent || byPath[c.path] < sent*8/10 {
				t.Errorf("%v repeated and %d left to the kernel of %d that arrived", byPath, kernel, sent)
			}
			if c.path == "xdp" {
				if out := delta(`shunt_redirected_frames_total{outcome="sent",port="wan"}`); out != byPath["xdp"] {
					t.Errorf("%d frames were sent to wan, %d repeated", out, byPath["xdp"])
				}
			}
			if n := delta(`shunt_packets_total{port="lan",reason="hit",stage="` + map[string]string{"xdp": "xdp", "tc": "tc-ingress"}[c.path] + `"}`); n != byPath[c.path] {
				t.Errorf("%d hits by reason, %d by path", n, byPath[c.path])
			}
			s := r.status()
			if learned := s.Counters["tc-egress"]["learned"]; uint64(after["shunt_learned_flows_total"]) != learned || learned < 135 {
				t.Errorf("%v flows learned, the API says %d", after["shunt_learned_flows_total"], learned)
			}
			if after["shunt_flow_slots"] != 4096 || after[`shunt_port_state{port="lan",state="`+r.port("lan").State+`"}`] != 1 {
				t.Errorf("slots %v; lan is %s", after["shunt_flow_slots"], r.port("lan").State)
			}
			r.ip("link set lan mtu 1500") // an announced change
			r.eventually("flows are counted, and the change", 2*patience, func() bool {
				now, err := r.scrape(c.network, at)
				r.must(err)
				counted := now[`shunt_flows{state="armed"}`] + now[`shunt_flows{state="old"}`] + now[`shunt_flows{state="expired"}`]
				return counted >= 135 && now["shunt_flows_counted_timestamp_seconds"] > after["shunt_start_time_seconds"] &&
					now[`shunt_changes_total{kind="link"}`] == float64(r.status().Events["link"])
			})
			if b := after["shunt_heartbeat_age_seconds"]; b < 0 || b > 2 {
				t.Errorf("the heartbeat is %v s old", b)
			}

			r.must(os.WriteFile(file, []byte(base+"threshold = 0\n"), 0o600))
			r.shunt("reload")
			if _, _, code := r.shunt("pause"); code != 0 {
				t.Error("pause fails")
			}
			now, err := r.scrape(c.network, at)
			r.must(err)
			if now["shunt_config_last_reload_successful"] != 0 || after["shunt_config_last_reload_successful"] != 1 || now["shunt_paused"] != 1 {
				t.Errorf("a refused file: %v, before %v; paused %v", now["shunt_config_last_reload_successful"],
					after["shunt_config_last_reload_successful"], now["shunt_paused"])
			}
			if r.port("lan").State == api.PortRefused {
				t.Error("lan is refused")
			}
		})
	}
}

// scrape reads all series, by name and labels as they are written.
func (r *rig) scrape(network, address string) (map[string]float64, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (c net.Conn, err error) {
			r.LAN.NS.Do(func() error { c, err = net.Dial(network, address); return nil })
			return c, err
		}}}
	answer, err := client.Get("http://shunt/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s (%w)", answer.Status, text, err)
	}
	series := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if series[line[:at]], err = strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	return series, nil
}
