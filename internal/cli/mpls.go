// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/lfib"
)

// origin is what the daemon tells monitors of changes made here.
const origin = "cli"

func (e *env) mplsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mpls TABLE",
		Short: "Switch labels: change and show the tables",
		Long: `Labels are switched by the tables of RFC 3031: ilm says which NHLFE an incoming label has,
nhlfe what is done with the packet, ftn which IP packets get labels in the first place. Each
port takes labels only after its space is set. Every change is made whole, under traffic,
or not at all; "apply" makes many changes as one. docs/mpls.md has examples.`,
		Example: `  shunt mpls space set eth0 0
  shunt mpls route add 100 as 200/300 via inet 10.0.0.2 dev eth1
  shunt mpls stats`,
	}
	group(cmd, e.mplsRoute(), e.mplsILM(), e.mplsNHLFE(), e.mplsFTN(), e.mplsMap(), e.mplsSpace(),
		e.mplsStats(), e.mplsMonitor(), e.mplsApply(), e.mplsSave())
	return cmd
}

// writes completes a command that sends its own words to the daemon as a line.
func (e *env) writes(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return e.mplsWrite(cmd, words) }
	return cmd
}

// mplsWrite checks a line before the daemon is asked: what is wrong in itself is a wrong use.
func (e *env) mplsWrite(cmd *cobra.Command, words []string) error {
	line := strings.Join(strings.Fields(cmd.Name()+" "+strings.Join(words, " ")), " ")
	if _, err := lfib.Parse(line); err != nil {
		return usageError{err}
	}
	return e.mplsSend(cmd.Context(), []string{line})
}

func (e *env) mplsSend(ctx context.Context, lines []string) error {
	done, err := e.client().MPLSApply(ctx, api.MPLSChange{Lines: lines, Origin: origin})
	if err != nil {
		return err
	}
	if !e.json {
		for _, warning := range done.Warnings {
			fmt.Fprintln(e.err, "shunt: "+oneLine(errors.New(warning)))
		}
	}
	return e.show(done, func(*page) {})
}

func (e *env) mplsRoute() *cobra.Command {
	return e.reader(e.writes(&cobra.Command{
		Use:   "route {add|change|replace|del} LABEL [as LABEL[/LABEL]...] [via {inet|inet6} ADDR] dev PORT [ttl-propagate {enabled|disabled}]",
		Short: "Write a label's route as iproute2 does",
		Long: `Takes what "ip -f mpls route" takes, and makes an entry of ilm and one of nhlfe of it, in space
0: the label that comes in is replaced by those behind "as", the outermost first; without
"as" it is popped, and with "dev lo" what is below it is looked up here. The NHLFE's ID is
2147483648 and the label added up; "shunt mpls ilm" shows both.`,
		Example: `  shunt mpls route add 100 as 200/300 via inet 10.0.0.2 dev eth1
  shunt mpls route replace 100 as 201 via inet6 2001:db8::2 dev eth1
  shunt mpls route add 101 via inet 10.0.0.2 dev eth1
  shunt mpls route add 102 dev lo
  shunt mpls route del 100`,
	}))
}

func (e *env) mplsILM() *cobra.Command {
	return e.mplsTable(&cobra.Command{
		Use:   "ilm {add|change|replace|del|show} LABEL [space S] [tc T] nhlfe ID",
		Short: "Incoming labels",
		Long: `Says which NHLFE packets with a label get: in label space S (0 if not told), with traffic
class T, or with any for which there is no other entry. "del" takes no nhlfe. "show" takes a
label, a space, both or neither.`,
		Example: `  shunt mpls ilm add 100 nhlfe 7
  shunt mpls ilm add 100 space 3 tc 5 nhlfe 8
  shunt mpls ilm replace 100 nhlfe 9
  shunt mpls ilm show space 3`,
	}, func(ctx context.Context, f api.MPLSFilter) error {
		entries, err := e.client().MPLSILM(ctx, f)
		if err != nil {
			return err
		}
		return e.show(entries, func(p *page) { printILM(p, entries, f.Limit) })
	})
}

func (e *env) mplsNHLFE() *cobra.Command {
	return e.mplsTable(&cobra.Command{
		Use:   "nhlfe {add|change|replace|del|show} ID [mtu N] [ttl uniform|pipe|short-pipe] INSTRUCTION...",
		Short: "What is done with a packet",
		Long: `Writes the list of instructions that packets get: those of ilm and ftn that name its ID, a
number from 1 to 4294967295. The list is done in order and ends with send, peek, forward,
by-tc, by-dscp, by-hash, deliver or drop:

  pop                            take the label on top off
  push LABEL [tc N|tc-map NAME] [ttl N]
  swap LABEL                     replace it
  entropy                        before a push: an entropy label below that one (RFC 6790)
  set-tc N, tc-map NAME          traffic class of the label on top: N, or by the DSCP below
  set-dscp N, dscp-map NAME      DSCP of the IP packet that was laid bare: N, or by the class
  peek [space S]                 look the next label up
  forward ID                     go on with the list of another NHLFE
  by-tc T:ID... [default ID]     the same, chosen by traffic class
  by-dscp D:ID... [default ID]   the same, chosen by DSCP
  by-hash ID[*WEIGHT]...         the same, chosen for each flow
  send dev PORT {via inet ADDR|via inet6 ADDR|lladdr MAC [upstream]}
  deliver                        give the IP packet to the kernel, as if it came in without labels
  drop

upstream sends with EtherType 0x8848, to a group: the label on top is one that this router has
given out (RFC 5331). ttl says what TTL and traffic class are across the path: uniform (the default), pipe or
short-pipe. mtu N is the largest packet with its labels; without, the port's.`,
		Example: `  shunt mpls nhlfe add 7 pop push 200 tc 3 send dev eth1 via inet 10.0.0.2
  shunt mpls nhlfe add 8 ttl pipe pop send dev eth1 via inet 10.0.0.2
  shunt mpls nhlfe add 9 pop deliver
  shunt mpls nhlfe add 10 by-hash 7*3 8
  shunt mpls nhlfe show 7`,
	}, func(ctx context.Context, f api.MPLSFilter) error {
		entries, err := e.client().MPLSNHLFE(ctx, f)
		if err != nil {
			return err
		}
		return e.show(entries, func(p *page) { printNHLFE(p, entries, f.Limit) })
	})
}

func (e *env) mplsFTN() *cobra.Command {
	return e.mplsTable(&cobra.Command{
		Use:   "ftn {add|replace|del|show} PREFIX nhlfe ID",
		Short: "IP packets that get labels",
		Long: `Says which NHLFE IP packets to a prefix get, by the longest prefix of where they go: those that
leave by a port of shunt's, forwarded or of this host's own, once the kernel has routed them and its
rules have had their say. The NHLFE's list has no pop and no swap. A prefix whose NHLFE is "deliver"
is left as it is, within one that is not. "del" takes no nhlfe.`,
		Example: `  shunt mpls ftn add 192.0.2.0/24 nhlfe 7
  shunt mpls ftn add 2001:db8::/32 nhlfe 7
  shunt mpls ftn del 192.0.2.0/24`,
	}, func(ctx context.Context, f api.MPLSFilter) error {
		entries, err := e.client().MPLSFTN(ctx, f)
		if err != nil {
			return err
		}
		return e.show(entries, func(p *page) { printFTN(p, entries, f.Limit) })
	})
}

func (e *env) mplsMap() *cobra.Command {
	return e.mplsTable(&cobra.Command{
		Use:   "map {add|replace|del|show} NAME {tc-to-dscp|dscp-to-tc} K:V...",
		Short: "Maps between traffic class and DSCP",
		Long: `Makes a map that NHLFEs use by its name (tc-map, dscp-map). A value that is not in it becomes
0. Replaced, it counts for all that use it at once.`,
		Example: `  shunt mpls map add gold dscp-to-tc 46:5 34:4 0:0
  shunt mpls map add back tc-to-dscp 5:46 4:34
  shunt mpls map show gold`,
	}, func(ctx context.Context, f api.MPLSFilter) error {
		entries, err := e.client().MPLSMap(ctx, f)
		if err != nil {
			return err
		}
		return e.show(entries, func(p *page) { printMap(p, entries, f.Limit) })
	})
}

func (e *env) mplsSpace() *cobra.Command {
	return e.mplsTable(&cobra.Command{
		Use:   "space {set|show} PORT... {S [upstream U]|off}",
		Short: "Which labels come in by a port",
		Long: `Gives ports a label space, from 0 to 254: frames with labels that come in by them are looked
up there. Until then, and after "off", a port takes no labels.

With upstream, frames to an MPLS group (01:00:5e:80:00:00 to 01:00:5e:8f:ff:ff) are taken too: those
of EtherType 0x8848, whose label on top the sender has given out, are looked up in space U
(RFC 5331, RFC 5332), those of 0x8847 in S.`,
		Example: `  shunt mpls space set eth0 eth1 0
  shunt mpls space set eth0 0 upstream 9
  shunt mpls space set eth1 off
  shunt mpls space show`,
	}, func(ctx context.Context, f api.MPLSFilter) error {
		entries, err := e.client().MPLSSpace(ctx, f)
		if err != nil {
			return err
		}
		return e.show(entries, func(p *page) { printSpaces(p, entries, f.Limit) })
	})
}

func (e *env) mplsStats() *cobra.Command {
	var filter api.MPLSFilter
	cmd := e.reader(&cobra.Command{
		Use:   "stats",
		Short: "Show what was counted, by the names of RFC 3813",
		Long: `Shows the tables of RFC 3813 with 64-bit counters: of each interface with labels, of incoming
labels and of NHLFEs that send, the busiest first. Below: why packets with labels were not switched.`,
		Example: `  shunt mpls stats
  shunt mpls stats --json | jq '.in_segments[] | select(.label == 100)'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := e.limit(cmd, &filter); err != nil {
				return err
			}
			stats, err := e.client().MPLSStats(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return e.show(stats, func(p *page) { printMPLSStats(p, stats, filter.Limit) })
		},
	})
	limitFlag(cmd, &filter)
	return cmd
}

func (e *env) mplsMonitor() *cobra.Command {
	return &cobra.Command{
		Use:   "monitor",
		Short: "Print every change as it happens, one JSON object a line",
		Long: `Prints changes of the tables, in the order in which they were made, with who made them, and
adjacencies that come and go. It goes on until Ctrl-C.`,
		Example: `  shunt mpls monitor
  shunt mpls monitor | jq -r '"\(.origin): \(.line)"'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := json.NewEncoder(e.out)
			out.SetEscapeHTML(false)
			return e.client().MPLSMonitor(cmd.Context(), func(event api.MPLSEvent) error { return out.Encode(event) })
		},
	}
}

func (e *env) mplsApply() *cobra.Command {
	return takesFile(e.reader(&cobra.Command{
		Use:   "apply FILE",
		Short: "Make many changes as one",
		Long: `Makes all the changes of a file, or of stdin (-), or none of them. A line is what would stand
behind "shunt mpls"; "#" begins a comment. A line that is wrong in itself is told by its
number, before the daemon is asked.`,
		Example: `  shunt mpls apply lsr.mpls
  shunt mpls save | sed 's/dev eth1/dev eth2/; s/ add / replace /' | shunt mpls apply -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("apply: give one file, or - for stdin; see %q", cmd.CommandPath()+" --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			in, name := io.ReadCloser(os.Stdin), "stdin"
			if args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("apply: %w", err)
				}
				in, name = file, args[0]
			}
			defer in.Close()
			lines, err := readLines(in, name)
			if err != nil {
				return err
			}
			return e.mplsSend(cmd.Context(), lines)
		},
	}))
}

// readLines reads what apply takes, without comments and empty lines. Lines are numbered from 1,
// as editors do.
func readLines(in io.Reader, name string) (lines []string, err error) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 64<<10), 1<<20)
	for n := 1; scanner.Scan(); n++ {
		line := scanner.Text()
		changes, err := lfib.Parse(line)
		if err != nil {
			return nil, usagef("%s:%d: %w", name, n, err)
		}
		if len(changes) > 0 {
			lines = append(lines, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("apply: %s: %w", name, err)
	}
	return lines, nil
}

func (e *env) mplsSave() *cobra.Command {
	return &cobra.Command{
		Use:   "save",
		Short: "Print the tables as a file that apply takes",
		Long: `Prints the lines that make the tables as they are out of empty ones, or out of others in which
no more is: each entry is a replace, so the file can be applied again. The daemon remembers
them over its own end, but not over "shunt stop", nor when the machine starts anew: save them, and
apply the file at the start.`,
		Example: `  shunt mpls save > lsr.mpls`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := &replacing{out: e.out}
			return errors.Join(e.client().MPLSSave(cmd.Context(), out), out.flush())
		},
	}
}

// replacing writes lines on with the verb replace in the place of add: what apply takes twice.
type replacing struct {
	out  io.Writer
	rest []byte // the begin of a line
}

// Write takes text with its lines cut anywhere.
func (r *replacing) Write(b []byte) (int, error) {
	text := append(r.rest, b...)
	end := bytes.LastIndexByte(text, '\n') + 1
	r.rest = append([]byte(nil), text[end:]...)
	return len(b), r.lines(text[:end])
}

func (r *replacing) flush() error { return r.lines(r.rest) }

func (r *replacing) lines(text []byte) error {
	var out []byte
	for line := range bytes.Lines(text) {
		if object, rest, found := bytes.Cut(line, []byte(" ")); found && bytes.HasPrefix(rest, []byte("add ")) {
			out = append(append(append(out, object...), " replace "...), rest[len("add "):]...)
			continue
		}
		out = append(out, line...)
	}
	_, err := r.out.Write(out)
	return err
}
