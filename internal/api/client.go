// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// ErrNoDaemon is what a Client's error wraps when nobody listens at the socket.
var ErrNoDaemon = errors.New("no daemon answers")

// ErrNoAnswer is what a Client's error wraps when a daemon listens and says nothing.
var ErrNoAnswer = errors.New("the daemon does not answer")

// How long a daemon may take: for what it has at hand, and for what may be a large table.
const (
	promptly  = 5 * time.Second
	patiently = time.Minute
)

// Client asks a daemon. Its methods return errors of one line that name the socket and
// the fix, or the daemon's own words.
type Client struct {
	socket  string
	prompt  http.Client
	http    http.Client
	patient http.Client // only the context ends it
}

// NewClient makes a client of the daemon at a socket, without connecting to it.
func NewClient(socket string) *Client {
	var dialer net.Dialer
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}
	transport := &http.Transport{DialContext: dial}
	return &Client{socket, http.Client{Transport: transport, Timeout: promptly},
		http.Client{Transport: transport, Timeout: patiently}, http.Client{Transport: transport}}
}

// Status asks for the daemon at a glance.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "status", nil)
}

// Ports asks for all ports.
func (c *Client) Ports(ctx context.Context) ([]Port, error) { return get[[]Port](ctx, c, "ports", nil) }

// Flows asks for the flows that a filter chooses.
func (c *Client) Flows(ctx context.Context, f FlowFilter) ([]Flow, error) {
	return get[[]Flow](ctx, c, "flows", f.Values())
}

// Explain asks why flows are fast or are not.
func (c *Client) Explain(ctx context.Context, q ExplainQuery) ([]Explanation, error) {
	return get[[]Explanation](ctx, c, "explain", q.Values())
}

// Differences asks for what renewals found that was not announced, the latest first.
func (c *Client) Differences(ctx context.Context) ([]Difference, error) {
	return get[[]Difference](ctx, c, "differences", nil)
}

// Doctor asks for the findings about the machine and the daemon's ports.
func (c *Client) Doctor(ctx context.Context) ([]Check, error) {
	return get[[]Check](ctx, c, "doctor", nil)
}

// Config asks for the configuration in force.
func (c *Client) Config(ctx context.Context) ([]Setting, error) {
	return get[[]Setting](ctx, c, "config", nil)
}

// Pause sends everything to the kernel until Resume.
func (c *Client) Pause(ctx context.Context) error { return c.post(ctx, "pause") }

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context) error { return c.post(ctx, "resume") }

// Reload has the daemon read its configuration again, and apply the whole of it or nothing.
func (c *Client) Reload(ctx context.Context) error { return c.post(ctx, "reload") }

// Stop tells the daemon to end and take everything with it. It returns before that is
// done; the daemon's lock tells when.
func (c *Client) Stop(ctx context.Context) error { return c.post(ctx, "stop") }

func (c *Client) post(ctx context.Context, name string) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, name, nil)
	return err
}

func get[T any](ctx context.Context, c *Client, name string, values url.Values) (T, error) {
	return ask[T](ctx, c, http.MethodGet, name, values)
}

// ask is one exchange without a body.
func ask[T any](ctx context.Context, c *Client, method, name string, values url.Values) (answer T, err error) {
	response, err := c.exchange(ctx, exchange{method: method, name: name, values: values})
	if err != nil {
		return answer, err
	}
	return answer, c.read(response, &answer)
}

// exchange is a request to be made.
type exchange struct {
	method, name string
	values       url.Values
	body         io.Reader
	patient      bool // only ctx ends it
}

// exchange returns the answer of a request that the daemon did not refuse. The host's name in
// the URL is not used by anybody.
func (c *Client) exchange(ctx context.Context, x exchange) (*http.Response, error) {
	address := url.URL{Scheme: "http", Host: "shunt", Path: "/v1/" + x.name, RawQuery: x.values.Encode()}
	request, err := http.NewRequestWithContext(ctx, x.method, address.String(), x.body)
	if err != nil {
		return nil, err
	}
	client := &c.http
	switch {
	case x.patient:
		client = &c.patient
	case x.name == "status" || x.name == "ports" || x.method == http.MethodPost && x.body == nil:
		client = &c.prompt
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, c.explain(err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, c.failure(response)
	}
	return response, nil
}

// read decodes an answer's body, and closes it.
func (c *Client) read(response *http.Response, answer any) error {
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("%s: the answer cannot be read, is the daemon of another version? (%v)", c.socket, err)
	}
	return nil
}

// explain says what a failed exchange means to the operator.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf(`%w at %s; start one with "shunt run --port IF"`, ErrNoDaemon, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied; be root, or the user the daemon runs as", c.socket)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s: the daemon hung up; be root, or the user the daemon runs as", c.socket)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w; see its log, or take over from it with \"shunt run --replace\"", c.socket, ErrNoAnswer)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("%s: %w", c.socket, err)
}

func (c *Client) failure(response *http.Response) error {
	var f failure
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if json.Unmarshal(body, &f) != nil || f.Error == "" {
		return fmt.Errorf("%s: the daemon answers %q; is it of another version?", c.socket, response.Status)
	}
	return errors.New(strings.Join(strings.Fields(f.Error), " "))
}
