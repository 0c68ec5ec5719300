// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"shunt/internal/dataplane/traffic"
)

func TestIPForwarded(t *testing.T) {
	text := "Ip: Forwarding DefaultTTL InReceives ForwDatagrams InDiscards\nIp: 1 64 9 7 0\nIcmp: InMsgs\nIcmp: 3\n"
	if n, err := ipForwarded(text); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, text := range []string{"", "Ip: Forwarding\nIp: 1\n", "Ip: ForwDatagrams\nIp: x\n"} {
		if n, err := ipForwarded(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
}

func TestParseCPU(t *testing.T) {
	c, err := parseCPU("cpu  100 20 300 5000 60 7 800 90 0 0\ncpu0 1 1 1\ncpu1 1 1 1\nintr 5\n")
	if err != nil || c.cpus != 2 || c.free != 51.5 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{"", "intr 1 2 3", "cpu  1 2 3 4 5 6 7 8", "cpu  1 2 3 4 x 6 7 8\ncpu0 1\n", "cpu  1 2 3\ncpu0 1\n"} {
		if _, err := parseCPU(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestReceived(t *testing.T) {
	for _, c := range []struct {
		json string
		want float64
	}{
		{`{"end": {"sum_sent": {"bits_per_second": 9}, "sum_received": {"bits_per_second": 8}}}`, 8},
		{`{"end": {"sum": {"bits_per_second": 200, "lost_percent": 25}}}`, 150},
	} {
		if got, err := received([]byte(c.json)); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.json, got, err)
		}
	}
	for _, text := range []string{"", "iperf3: x", `{"error": "unable to connect"}`} {
		if _, err := received([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestPingResult(t *testing.T) {
	got, err := pingResult("2 packets transmitted\nrtt min/avg/max/mdev = 0.021/0.034/0.102/0.011 ms\n")
	if err != nil || got != (RoundTrip{0.021, 0.034, 0.102}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := pingResult("2 packets transmitted, 0 received\n"); err == nil {
		t.Error("no times were taken")
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 999.6: "1,000", 1234567: "1,234,567", -123: "-123", -4567: "-4,567", 100000: "100,000"} {
		if got := Thousands(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}

// Each thing that does not add up is told by its name.
func TestAudit(t *testing.T) {
	good := func() Phase {
		return Phase{Mode: Shunt, Sent: 10, Sunk: 10, Hits: 7, Forwarded: 3, size: 64, stats: traffic.Stats{Frames: 10, Bytes: 640}}
	}
	if err := good().audit(); err != nil {
		t.Error(err)
	}
	for word, spoil := range map[string]func(*Phase){
		"nothing was sent":   func(p *Phase) { *p = Phase{Mode: Shunt} },
		"sunk":               func(p *Phase) { p.Sent++ },
		"counters disagree":  func(p *Phase) { p.Hits++ },
		"10 frames of 64":    func(p *Phase) { p.stats.Bytes++ },
		"L4 checksum 1":      func(p *Phase) { p.stats.BadL4++ },
		"1 times twice":      func(p *Phase) { p.stats.Duplicates++ },
		"lost 1 times":       func(p *Phase) { p.stats.Lost++ },
		"forwarded by the k": func(p *Phase) { p.Mode, p.Hits = Limit, 0 },
	} {
		p := good()
		spoil(&p)
		if err := p.audit(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("want %q, got %v", word, err)
		}
	}
	limit := Phase{Mode: Limit, Sent: 10, Sunk: 10, size: 64, stats: traffic.Stats{Frames: 10, Bytes: 640}}
	if err := limit.audit(); err != nil {
		t.Error(err)
	}
}

func TestMapInfo(t *testing.T) {
	id, bytes := mapInfo("pos:\t0\nmap_type:\t2\nvalue_size:\t192\nmemlock:\t100663552\nmap_id:\t17\nfrozen:\t0\n")
	if id != "17" || bytes != 100663552 {
		t.Errorf("map %q with %d bytes", id, bytes)
	}
	if id, _ := mapInfo("pos:\t0\nprog_id:\t3\nmemlock:\t4096\n"); id != "" {
		t.Errorf("a program was taken for map %q", id)
	}
}

func TestConntrackBytes(t *testing.T) {
	text := "# name <active_objs> <num_objs> <objsize>\nnf_conntrack_expect 0 0 208 39\nnf_conntrack 144 160 256 16\n"
	if n := conntrackBytes(text); n != 256 {
		t.Errorf("%d bytes", n)
	}
	if n := conntrackBytes("kmalloc-256 1 2 256\n"); n != 0 {
		t.Errorf("%d bytes without a cache of its own", n)
	}
}
