// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"shunt/internal/api"
)

// showDifferences is `shunt status --differences`.
func (e *env) showDifferences(ctx context.Context) error {
	list, err := e.client().Differences(ctx)
	if err != nil {
		return err
	}
	return e.show(list, func(p *page) { printDifferences(p, list) })
}

func printDifferences(p *page, list []api.Difference) {
	if len(list) == 0 {
		p.line("none: no renewal has found anything that was not announced")
		return
	}
	t := newTable(">AGO", "IN", "SOURCE", "DESTINATION", ">REPEATED", "WAS", "IS")
	for i := range list {
		d := &list[i]
		source, dest := between(d.Proto, d.Source, d.Destination)
		was, is := formWords(d)
		t.add(span(now().Sub(d.At).Seconds()), d.Port, source, dest, count(d.Packets), was, is)
	}
	p.table(t)
}

// between writes two ends as flows have them.
func between(name string, source, dest netip.AddrPort) (from, to string) {
	proto, _ := api.ProtoNumber(name)
	return api.FlowQuery{Source: source, Destination: dest, Proto: proto, AnyID: source.Port() == 0}.Ends()
}

// formWords says what differs, before and after.
func formWords(d *api.Difference) (was, is string) {
	var old, now []string
	add := func(format string, before, after any) {
		if before != after {
			old = append(old, fmt.Sprintf(format, before))
			now = append(now, fmt.Sprintf(format, after))
		}
	}
	b, a := &d.Before, &d.After
	add("out by %s", b.Out, a.Out)
	add("from %s", b.Source, a.Source)
	add("to %s", b.Destination, a.Destination)
	add("MAC %s", b.SourceMAC, a.SourceMAC)
	add("to MAC %s", b.DestMAC, a.DestMAC)
	add("DSCP %d", b.DSCP, a.DSCP)
	add("up to %d bytes", b.MTU, a.MTU)
	add("mark %#x", b.Mark, a.Mark)
	add("priority %#x", b.Priority, a.Priority)
	return strings.Join(old, ", "), strings.Join(now, ", ")
}
