// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

const (
	topInterval = time.Second
	// topCandidates is how many flows, the fastest, are asked for: a million would cost the
	// daemon more than they tell.
	topCandidates = 5000
	// onceHeight is that of a frame which goes to no terminal.
	onceHeight = 40
)

func (e *env) topCommand() *cobra.Command {
	var once bool
	cmd := e.reader(&cobra.Command{
		Use:   "top",
		Short: "Watch the busiest flows, once a second",
		Long: `Redraws once a second: packets repeated and left to the kernel, and the flows with most
packets per second. q or Ctrl-C ends it. --once
prints one frame, and --json the flows of one frame, as "shunt flows" does.`,
		Example: `  shunt top
  shunt top --once`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := topPoller{env: e}
			if once || e.json {
				return e.topOnce(cmd.Context(), &t)
			}
			return e.topLive(cmd.Context(), &t)
		},
	})
	cmd.Flags().BoolVar(&once, "once", false, "print one frame")
	return cmd
}

func (e *env) topOnce(ctx context.Context, t *topPoller) error {
	if _, err := t.poll(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return errors.New("top: interrupted")
	case <-time.After(topInterval):
	}
	state, err := t.poll(ctx)
	if err != nil {
		return err
	}
	flows := make([]api.Flow, len(state.flows))
	for i, f := range state.flows {
		flows[i] = f.Flow
	}
	s := size{0, onceHeight}
	if out, ok := e.out.(*os.File); ok && isTerminal(out) {
		s = terminalSize(out)
	}
	return e.show(flows, func(p *page) { p.WriteString(render(state, s.width, s.height)) })
}

// topLive draws on the terminal's other screen until q, Ctrl-C or an error.
func (e *env) topLive(ctx context.Context, t *topPoller) error {
	out, ok := e.out.(*os.File)
	if !ok || !isTerminal(out) || !isTerminal(os.Stdin) {
		return usagef(`top: needs a terminal; use "shunt top --once"`)
	}
	typed, restore, err := keys(os.Stdin)
	if err != nil {
		return err
	}
	defer restore()
	// Other screen, no cursor; and back.
	io.WriteString(out, "\x1b[?1049h\x1b[?25l")
	defer io.WriteString(out, "\x1b[?25h\x1b[?1049l")

	tick := time.NewTicker(topInterval)
	defer tick.Stop()
	for {
		state, err := t.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s := terminalSize(out)
		draw(out, render(state, s.width, s.height))
		if !waitTop(ctx, typed, tick.C) {
			return nil
		}
	}
}

// waitTop waits for the next frame's time; false if the user has seen enough.
func waitTop(ctx context.Context, typed <-chan byte, tick <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case key, ok := <-typed:
			if !ok || key == 'q' || key == 'Q' {
				return false
			}
		}
	}
}

// draw puts a frame on the screen without clearing it first, so that nothing flickers.
func draw(out io.Writer, frame string) {
	frame = strings.TrimSuffix(frame, "\n")
	fmt.Fprint(out, "\x1b[H"+strings.ReplaceAll(frame, "\n", "\x1b[K\r\n")+"\x1b[K\x1b[J")
}
