// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"time"

	"shunt/internal/api"
	"shunt/internal/config"
)

// Unattended answers for a data path whose daemon is gone or does not answer.
type Unattended interface {
	Status() (api.Status, error)
	Ports() ([]api.Port, error)
	Flows(api.FlowFilter) ([]api.Flow, error)
	Explain(api.ExplainQuery) ([]api.Explanation, error)
	Pause(bool) error
	Beats() bool // whether the daemon has had a heartbeat lately
	Close() error
}

// Pinned opens what a daemon left, or nil where there is nothing. main sets it.
var Pinned func(paths config.Paths) (Unattended, error)

// orPinned is the daemon's answer or, where no daemon answers, that of what one left.
func orPinned[T any](e *env, answer T, err error, ask func(Unattended) (T, error)) (T, error) {
	if Pinned == nil || !errors.Is(err, api.ErrNoDaemon) && !errors.Is(err, api.ErrNoAnswer) {
		e.unattended, e.hung = false, false
		return answer, err
	}
	left, openErr := Pinned(e.paths)
	if openErr != nil {
		return answer, openErr
	}
	if left == nil {
		return answer, err
	}
	defer left.Close()
	e.unattended, e.hung = true, errors.Is(err, api.ErrNoAnswer)
	return ask(left)
}

// How long a daemon that does not answer is waited for before its heartbeat is looked at, and, once it
// is known to hang, at all.
const (
	hangsAfter = 5 * time.Second
	hungLimit  = 200 * time.Millisecond
)

// watched asks the daemon, for as long as its heart beats: a large table may take a minute, a daemon
// that hangs never answers.
func watched[T any](ctx context.Context, e *env, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := hangsAfter
	if e.hung {
		limit = hungLimit
	}
	look := time.AfterFunc(limit, func() {
		if e.hung || e.hangs() {
			cancel(api.ErrNoAnswer)
		}
	})
	defer look.Stop()
	answer, err := ask(ctx)
	if err != nil && errors.Is(context.Cause(ctx), api.ErrNoAnswer) {
		err = context.Cause(ctx)
	}
	return answer, err
}

// hangs reports whether there is a data path whose daemon has no heartbeat.
func (e *env) hangs() bool {
	if Pinned == nil {
		return false
	}
	left, err := Pinned(e.paths)
	if err != nil || left == nil {
		return false
	}
	defer left.Close()
	return !left.Beats()
}

func (e *env) status(ctx context.Context) (api.Status, error) {
	s, err := watched(ctx, e, e.client().Status)
	return orPinned(e, s, err, Unattended.Status)
}

func (e *env) ports(ctx context.Context) ([]api.Port, error) {
	ports, err := watched(ctx, e, e.client().Ports)
	return orPinned(e, ports, err, Unattended.Ports)
}

func (e *env) flows(ctx context.Context, f api.FlowFilter) ([]api.Flow, error) {
	flows, err := watched(ctx, e, func(ctx context.Context) ([]api.Flow, error) { return e.client().Flows(ctx, f) })
	return orPinned(e, flows, err, func(u Unattended) ([]api.Flow, error) { return u.Flows(f) })
}

func (e *env) explain(ctx context.Context, q api.ExplainQuery) ([]api.Explanation, error) {
	x, err := watched(ctx, e, func(ctx context.Context) ([]api.Explanation, error) { return e.client().Explain(ctx, q) })
	return orPinned(e, x, err, func(u Unattended) ([]api.Explanation, error) { return u.Explain(q) })
}

// pause pauses or resumes, whether a daemon lives or not.
func (e *env) pause(ctx context.Context, paused bool) error {
	do := e.client().Resume
	if paused {
		do = e.client().Pause
	}
	_, err := orPinned(e, struct{}{}, do(ctx), func(u Unattended) (struct{}, error) { return struct{}{}, u.Pause(paused) })
	return err
}

// sayUnattended is the first line of what no daemon answered.
func (e *env) sayUnattended(p *page) {
	if e.unattended {
		p.line("%s", p.paint("no daemon answers: this is what the last one left; see \"shunt status\"", yellow))
		p.line("")
	}
}
