// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// chainCounters are those of all routers of both chains.
type chainCounters struct{ plain, fast []labelCounters }

func (c *chain) counters(ctx context.Context) (all chainCounters, err error) {
	for _, r := range c.plain.Routers {
		one, err := countersOf(ctx, r.NS, nil)
		if err != nil {
			return all, err
		}
		all.plain = append(all.plain, one)
	}
	for i, r := range c.fast.Routers {
		one, err := countersOf(ctx, r.NS, c.clients[i])
		if err != nil {
			return all, err
		}
		all.fast = append(all.fast, one)
	}
	return all, nil
}

// count notes packets that were sent over so many routers by labels, and answered so.
func (c *chain) count(hops int, requests, answers uint64) {
	for n := 2; n <= hops; n++ {
		c.sent[lab.ChainLabel(hops, n, false)] += requests
		c.sent[lab.ChainLabel(hops, n-1, true)] += answers
	}
}

// went wants that every router on the way has counted every request and every answer, as what it was: the
// kernel's routers as forwarded, shunt's as switched if it came with a label, else as a hit or, where a lease was proved, as forwarded,
// and as imposed where it got its label.
func (c *chain) went(all []*chainCase, before, after chainCounters) error {
	for i := range after.plain {
		var kernel, plain, switched, imposed uint64 // packets that pass this router
		for _, one := range all {
			switch r := one.result; {
			case r.Hops <= i:
			case r.Way == ChainKernel:
				kernel += 2 * one.sent
			case r.Way == ChainIP:
				plain += 2 * one.sent
			case i == 0 || i == r.Hops-1: // it pushes one way, and pops the other
				plain, switched, imposed = plain+one.sent, switched+one.sent, imposed+one.sent
			default:
				switched += 2 * one.sent
			}
		}
		if got := after.plain[i].forwarded - before.plain[i].forwarded; got != kernel {
			return fmt.Errorf("bench: counters disagree: router %d's kernel has forwarded %d packets of %d", i+1, got, kernel)
		}
		a, b := after.fast[i], before.fast[i]
		gotSwitched := a.labels - b.labels
		gotPlain := a.hits - b.hits - gotSwitched + a.forwarded - b.forwarded
		if gotImposed := a.imposed - b.imposed; gotSwitched != switched || gotPlain != plain || gotImposed != imposed {
			return fmt.Errorf("bench: counters disagree: shunt's router %d has switched %d packets of %d, given %d of %d their label, and %d of %d were hits or forwarded by the kernel",
				i+1, gotSwitched, switched, gotImposed, imposed, gotPlain, plain)
		}
	}
	for _, one := range all {
		if one.result.Way == ChainMPLS {
			c.count(one.result.Hops, one.sent, one.sent)
		}
	}
	return nil
}

// audit wants that the counters of all labels have what was sent with them.
func (c *chain) audit(ctx context.Context) error {
	for i, client := range c.clients {
		stats, err := client.MPLSStats(ctx, api.MPLSFilter{})
		if err != nil {
			return err
		}
		for _, s := range stats.InSegments {
			if s.Packets != c.sent[s.Label] || s.Errors+s.Discards > 0 {
				return fmt.Errorf("bench: counters disagree: router %d got %d packets with label %d; its counter has %d, %d errors and %d discards",
					i+1, c.sent[s.Label], s.Label, s.Packets, s.Errors, s.Discards)
			}
		}
	}
	return nil
}

// chainLast is a label that the last router swaps for, to be seen.
const chainLast = 3000

// wire looks at the frames themselves, as RFC 5695 wants: for once the last router swaps its label, and
// what comes to the host must have that label, alone, after as many hops as there are routers.
func (c *chain) wire(ctx context.Context, hops int) (err error) {
	last := c.clients[hops-1]
	old, err := last.MPLSNHLFE(ctx, api.MPLSFilter{ID: new(uint32(hops))})
	if err != nil {
		return err
	}
	replace := func(list string) error {
		_, err := last.MPLSApply(ctx, api.MPLSChange{Lines: []string{fmt.Sprintf("nhlfe replace %d %s", hops, list)}, Origin: "lab"})
		return err
	}
	if err := replace(fmt.Sprintf("swap %d send dev host via inet %s", chainLast+hops, c.fast.Switched(hops))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replace(old[0].List)) }()
	fd, err := packetSocket(c.fast.Hosts[hops-1], etherMPLS)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, bytes := range c.size.Sizes {
		if err := c.look(fd, hops, bytes); err != nil {
			return fmt.Errorf("over %d routers: %w", hops, err)
		}
	}
	return nil
}

// looks is how many frames of a size are looked at: more than shunt needs to learn a flow.
const looks = 15

// look sends requests, and checks what comes to the host.
func (c *chain) look(fd, hops, bytes int) error {
	e := c.way(ChainMPLS, hops, bytes)
	got := make([]byte, 2048)
	for range looks {
		e.next()
		if err := e.send(); err != nil {
			return err
		}
		c.count(hops, 1, 0)
		n, err := unix.Read(fd, got)
		if err != nil {
			return fmt.Errorf("bench: no frame with a label came: %w", err)
		}
		if n != bytes+4 {
			return fmt.Errorf("bench: of %d bytes and a label %d came", bytes, n)
		}
		want := uint32(chainLast+hops)<<12 | 1<<8 | uint32(echoTTL-hops)
		if entry := binary.BigEndian.Uint32(got[14:]); binary.BigEndian.Uint16(got[12:]) != etherMPLS || entry != want {
			return fmt.Errorf("bench: a frame came with EtherType %x and label stack entry %08x; it must be 8847 and %08x", got[12:14], entry, want)
		}
		if string(got[18+20:n]) != string(e.frame[14+20:]) {
			return errors.New("bench: what is behind the label and the IP header is not what was sent")
		}
	}
	return nil
}
