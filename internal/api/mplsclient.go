// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// MPLSApply has one transaction made. However long that takes, only ctx ends the waiting.
func (c *Client) MPLSApply(ctx context.Context, change MPLSChange) (done MPLSDone, err error) {
	response, err := c.exchange(ctx, exchange{method: http.MethodPost, name: "mpls/apply", body: bytes.NewReader(change.body()), patient: true})
	if err != nil {
		return done, err
	}
	return done, c.read(response, &done)
}

// MPLSILM asks for incoming labels.
func (c *Client) MPLSILM(ctx context.Context, f MPLSFilter) ([]MPLSILM, error) {
	return get[[]MPLSILM](ctx, c, "mpls/ilm", f.Values())
}

// MPLSNHLFE asks for lists of instructions.
func (c *Client) MPLSNHLFE(ctx context.Context, f MPLSFilter) ([]MPLSNHLFE, error) {
	return get[[]MPLSNHLFE](ctx, c, "mpls/nhlfe", f.Values())
}

// MPLSFTN asks which prefixes get labels.
func (c *Client) MPLSFTN(ctx context.Context, f MPLSFilter) ([]MPLSFTN, error) {
	return get[[]MPLSFTN](ctx, c, "mpls/ftn", f.Values())
}

// MPLSMap asks for maps between TC and DSCP.
func (c *Client) MPLSMap(ctx context.Context, f MPLSFilter) ([]MPLSMap, error) {
	return get[[]MPLSMap](ctx, c, "mpls/map", f.Values())
}

// MPLSSpace asks for the ports' label spaces.
func (c *Client) MPLSSpace(ctx context.Context, f MPLSFilter) ([]MPLSSpace, error) {
	return get[[]MPLSSpace](ctx, c, "mpls/space", f.Values())
}

// MPLSStats asks for what was counted.
func (c *Client) MPLSStats(ctx context.Context, f MPLSFilter) (MPLSStats, error) {
	return get[MPLSStats](ctx, c, "mpls/stats", f.Values())
}

// MPLSSave writes the lines that make the daemon's tables to w.
func (c *Client) MPLSSave(ctx context.Context, w io.Writer) error {
	response, err := c.exchange(ctx, exchange{method: http.MethodGet, name: "mpls/save", patient: true})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil {
		return c.explain(err)
	}
	return nil
}

// MPLSMonitor calls tell with each change from now on, until ctx ends, tell fails or the
// daemon hangs up. It returns nil only when ctx ended.
func (c *Client) MPLSMonitor(ctx context.Context, tell func(MPLSEvent) error) error {
	response, err := c.exchange(ctx, exchange{method: http.MethodGet, name: "mpls/monitor", patient: true})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := json.NewDecoder(bufio.NewReader(response.Body))
	for {
		var line struct {
			MPLSEvent
			failure
		}
		err := lines.Decode(&line)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%s: the daemon has ended; begin again when there is one", c.socket)
		case err != nil:
			return c.explain(err)
		case line.Error != "":
			return errors.New(line.Error)
		}
		if err := tell(line.MPLSEvent); err != nil {
			return err
		}
	}
}
