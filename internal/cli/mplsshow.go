// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

// mplsTable completes a command that shows a table with its first word "show", or with none, and
// else writes it.
func (e *env) mplsTable(cmd *cobra.Command, show func(context.Context, api.MPLSFilter) error) *cobra.Command {
	var filter api.MPLSFilter
	cmd = e.reader(cmd)
	limitFlag(cmd, &filter)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) > 0 && words[0] != "show" {
			return e.mplsWrite(cmd, words)
		}
		if err := e.limit(cmd, &filter); err != nil {
			return err
		}
		if err := chosen(cmd.Name(), words[min(1, len(words)):], &filter); err != nil {
			return usagef("mpls %s show: %w", cmd.Name(), err)
		}
		return show(cmd.Context(), filter)
	}
	return cmd
}

func limitFlag(cmd *cobra.Command, f *api.MPLSFilter) {
	cmd.Flags().IntVar(&f.Limit, "limit", tableLimit, "show so many: a `number`, 0 for all; with --json all is the default")
}

// limit makes of the flag what it says for JSON.
func (e *env) limit(cmd *cobra.Command, f *api.MPLSFilter) error {
	if f.Limit < 0 {
		return usagef("%s: --limit %d: use a number, 0 for all", cmd.Name(), f.Limit)
	}
	if e.json && !cmd.Flags().Changed("limit") {
		f.Limit = 0
	}
	return nil
}

// chosen reads the words behind "show": the key of the table's entries, and for ilm a space.
func chosen(table string, words []string, f *api.MPLSFilter) error {
	if at := slices.Index(words, "space"); table == "ilm" && at >= 0 {
		if at+1 == len(words) {
			return fmt.Errorf("space: use a number from 0 to 254 behind it")
		}
		n, err := strconv.ParseUint(words[at+1], 10, 8)
		if err != nil || n > 254 {
			return fmt.Errorf("space %q: use a number from 0 to 254", words[at+1])
		}
		space := int(n)
		f.Space = &space
		words = slices.Concat(words[:at], words[at+2:])
	}
	if len(words) == 0 {
		return nil
	}
	if len(words) > 1 {
		return fmt.Errorf("%q is one word too many", words[1])
	}
	word := words[0]
	switch table {
	case "ilm":
		n, err := strconv.ParseUint(word, 10, 20)
		if err != nil {
			return fmt.Errorf("label %q: use a number from 0 to 1048575", word)
		}
		label := uint32(n)
		f.Label = &label
	case "nhlfe":
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return fmt.Errorf("id %q: use a number from 1 to 4294967295", word)
		}
		id := uint32(n)
		f.ID = &id
	case "ftn":
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			return fmt.Errorf("prefix %q: use an IPv4 or IPv6 prefix, such as 192.0.2.0/24", word)
		}
		prefix = prefix.Masked()
		f.Prefix = &prefix
	case "map":
		f.Name = word
	case "space":
		f.Port = word
	}
	return nil
}

// only says that there may be more.
func (p *page) only(shown, limit int) {
	if limit > 0 && shown == limit {
		p.line("%s", p.paint("the first "+count(uint64(limit))+"; --limit 0 shows all", dim))
	}
}

func printILM(p *page, entries []api.MPLSILM, limit int) {
	t := newTable(">SPACE", ">LABEL", ">TC", ">NHLFE", "INSTRUCTIONS")
	for _, x := range entries {
		tc := "any"
		if x.TC != nil {
			tc = plainInt(*x.TC)
		}
		t.add(plainInt(x.Space), id(x.Label), tc, id(x.NHLFE), x.List)
	}
	p.table(t)
	p.only(len(entries), limit)
}

func printNHLFE(p *page, entries []api.MPLSNHLFE, limit int) {
	t := newTable(">ID", ">MTU", "TTL", "STATE", "INSTRUCTIONS")
	for _, x := range entries {
		mtu := "-"
		if x.MTU != 0 {
			mtu = plainInt(x.MTU)
		}
		t.add(id(x.ID), mtu, x.TTL, mplsState(x.State), x.List)
	}
	p.table(t)
	p.only(len(entries), limit)
	for _, x := range entries {
		if x.Reason != "" {
			p.line("%s: %s", p.paint("nhlfe "+id(x.ID), bold), clean(x.Reason))
		}
	}
}

// mplsState is MPLSUp, MPLSDown or none.
func mplsState(state string) cell {
	styles := map[string]style{api.MPLSUp: green, api.MPLSDown: red}
	return cell{or(state, "-"), styles[state]}
}

func printFTN(p *page, entries []api.MPLSFTN, limit int) {
	t := newTable("PREFIX", ">NHLFE", "INSTRUCTIONS")
	for _, x := range entries {
		t.add(x.Prefix.String(), id(x.NHLFE), x.List)
	}
	p.table(t)
	p.only(len(entries), limit)
}

func printMap(p *page, entries []api.MPLSMap, limit int) {
	t := newTable("NAME", "KIND", "ENTRIES")
	for _, x := range entries {
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(x.To)) {
			pairs = append(pairs, plainInt(k)+":"+plainInt(x.To[k]))
		}
		t.add(x.Name, x.Kind, strings.Join(pairs, " "))
	}
	p.table(t)
	p.only(len(entries), limit)
}

func printSpaces(p *page, entries []api.MPLSSpace, limit int) {
	t := newTable("PORT", ">SPACE", ">UPSTREAM", "STATE")
	for _, x := range entries {
		upstream := "-"
		if x.Upstream != nil {
			upstream = plainInt(*x.Upstream)
		}
		t.add(x.Port, plainInt(x.Space), upstream, mplsState(x.State))
	}
	p.table(t)
	for _, x := range entries {
		if x.Reason != "" {
			p.line("%s: %s", p.paint(clean(x.Port), bold), clean(sentence(x.Reason, x.Remedy)))
		}
	}
	p.only(len(entries), limit)
}

// id writes a label or an id: such numbers are not read in thousands.
func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// printMPLSStats names each table, so that with the head of a column it is the name in RFC 3813.
func printMPLSStats(p *page, s api.MPLSStats, limit int) {
	p.line("%s", p.paint("mplsInterfacePerf...", bold))
	t := newTable("INTERFACE", ">SPACE", ">InLabelsInUse", ">InLabelLookupFailures", ">OutLabelsInUse", ">OutFragmentedPkts")
	for _, x := range s.Interfaces {
		space := "-"
		if x.Space >= 0 {
			space = plainInt(x.Space)
		}
		t.add(x.Name, space, count(x.InLabelsInUse), count(x.InLabelLookupFailures), count(x.OutLabelsInUse), count(x.OutFragmentedPkts))
	}
	p.table(t)
	p.line("")
	p.line("%s", p.paint("mplsInSegmentPerf...", bold))
	t = newTable(">SPACE", ">LABEL", ">Packets", ">HCOctets", ">Errors", ">Discards", "DiscontinuityTime")
	for _, x := range s.InSegments {
		t.add(plainInt(x.Space), id(x.Label), count(x.Packets), count(x.HCOctets), count(x.Errors), count(x.Discards), stamp(x.DiscontinuityTime))
	}
	p.table(t)
	p.only(len(s.InSegments), limit)
	p.line("")
	p.line("%s", p.paint("mplsOutSegmentPerf...", bold))
	t = newTable(">NHLFE", "PORT", ">Packets", ">HCOctets", ">Errors", ">Discards", "DiscontinuityTime")
	for _, x := range s.OutSegments {
		t.add(id(x.NHLFE), x.Port, count(x.Packets), count(x.HCOctets), count(x.Errors), count(x.Discards), stamp(x.DiscontinuityTime))
	}
	p.table(t)
	p.only(len(s.OutSegments), limit)
	for _, x := range s.Interfaces {
		if len(x.Reasons) > 0 && x.Index != 0 {
			p.line("")
			p.line("%s: not switched: %s", p.paint(clean(x.Name), bold), strings.Join(counted(x.Reasons), ", "))
		}
	}
}

// stamp is a time for people; the zero one is never.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format("2006-01-02 15:04:05")
}
