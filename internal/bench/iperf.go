// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// transfer is one run of iperf3 from client to server.
type transfer struct {
	udp     bool
	packet  int // bytes of IP; 0: as TCP likes
	omit    int // seconds that pass before
	seconds int // measured
}

// What the headers take: IPv4 with TCP without options, or with UDP.
const tcpHeaders, udpHeaders = 40, 28

// iperf runs a transfer and returns the bits per second that the server received.
func (r *rig) iperf(ctx context.Context, t transfer) (float64, error) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return 0, errors.New("bench: iperf3 is not installed; apt-get install iperf3")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(t.omit+t.seconds+15)*time.Second)
	defer cancel()
	server := r.top.Server.NS.Command(ctx, "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		return 0, fmt.Errorf("bench: iperf3: %w", err)
	}
	defer func() { cancel(); server.Wait() }()
	if err := r.listening(ctx); err != nil {
		return 0, err
	}
	args := []string{"-J", "-O", fmt.Sprint(t.omit), "-t", fmt.Sprint(t.seconds), "-c", r.top.Server.V4.Addr().String()}
	switch {
	case t.udp:
		args = append(args, "-u", "-b", "0", "-l", fmt.Sprint(t.packet-udpHeaders))
	case t.packet != 0:
		args = append(args, "-M", fmt.Sprint(t.packet-tcpHeaders))
	}
	out, err := r.top.Client.NS.Command(ctx, "iperf3", args...).Output()
	bits, parseErr := received(out)
	if parseErr != nil && err != nil {
		return 0, fmt.Errorf("bench: iperf3: %w", err)
	}
	return bits, parseErr
}

// listening waits for iperf3's server: a client that is too early fails.
func (r *rig) listening(ctx context.Context) error {
	for ctx.Err() == nil {
		out, err := r.top.Server.NS.Run("ss", "-Hltn", "sport", "=", ":5201")
		if err != nil {
			return err
		}
		if strings.TrimSpace(out) != "" {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("bench: iperf3 -s does not listen")
}

// received finds the receiver's rate in iperf3's JSON, in bits per second.
func received(out []byte) (float64, error) {
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			Sum struct { // UDP: of the sender, with what the receiver lost
				BitsPerSecond float64 `json:"bits_per_second"`
				LostPercent   float64 `json:"lost_percent"`
			} `json:"sum"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, fmt.Errorf("bench: iperf3 wrote no JSON: %w", err)
	}
	switch {
	case r.Error != "":
		return 0, fmt.Errorf("bench: iperf3: %s", r.Error)
	case r.End.Received.BitsPerSecond > 0:
		return r.End.Received.BitsPerSecond, nil
	}
	return r.End.Sum.BitsPerSecond * (1 - r.End.Sum.LostPercent/100), nil
}
