// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// startup is how long a daemon may take until its API answers.
const startup = 60 * time.Second

// Daemon is a `shunt run` inside a namespace.
type Daemon struct {
	State  string // directory of lock and socket
	BPFFS  string // directory of pins
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// StartDaemon runs `binary run` with the lab's directories and the given
// arguments (`--port lan`, ...) in namespace n, and returns when its API
// answers. If it ends before, or does not answer within 60 s, the error holds
// the end of its log.
func (l *Lab) StartDaemon(ctx context.Context, n *NS, binary string, args ...string) (*Daemon, error) {
	d := &Daemon{State: l.State(), BPFFS: l.BPFFS(), log: filepath.Join(l.dir, "daemon.log")}
	return d.start(ctx, n, binary, args)
}

// StartDaemonAt is StartDaemon for a lab with several daemons, each of which has directories of
// its own, named after its place.
func (l *Lab) StartDaemonAt(ctx context.Context, place string, n *NS, binary string, args ...string) (*Daemon, error) {
	d := &Daemon{State: l.StateAt(place), BPFFS: l.BPFFS() + "-" + place, log: filepath.Join(l.dir, "daemon-"+place+".log")}
	return d.start(ctx, n, binary, args)
}

// start runs the daemon and waits for its API.
func (d *Daemon) start(ctx context.Context, n *NS, binary string, args []string) (*Daemon, error) {
	d.exited = make(chan struct{})
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	defer out.Close()
	// What this machine's own shunt is configured for is not for a lab; a --config of args wins.
	args = append([]string{"run", "--config", os.DevNull, "--state", d.State, "--bpffs", d.BPFFS}, args...)
	// Not bound to ctx, which is only for the start: a kept lab's daemon stays.
	d.cmd = n.Command(context.WithoutCancel(ctx), binary, args...)
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt is for its owner to handle
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("lab: start %s: %w", binary, err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
	}()
	if err := d.ready(ctx); err != nil {
		d.Kill9()
		return nil, err
	}
	return d, nil
}

// ready waits for the first answer of the API.
func (d *Daemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	for {
		if d.request(ctx, http.MethodGet, "/v1/status") == nil {
			return nil
		}
		select {
		case <-d.exited:
			return fmt.Errorf("lab: shunt run ended: %v: %s", d.err, d.tail())
		case <-ctx.Done():
			return fmt.Errorf("lab: shunt run does not answer on %s: %s", d.Socket(), d.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Socket is the path of the daemon's API socket.
func (d *Daemon) Socket() string { return filepath.Join(d.State, "api.sock") }

// PID is the daemon's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log is all that daemons of this lab have written so far.
func (d *Daemon) Log() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// crashes is how Go begins to tell of one; goroutines and registers follow at length.
var crashes = regexp.MustCompile(`(?m)^(panic: |fatal error: |SIG[A-Z]+: )`)

// tail is the log's end, or the begin of its crash, in one line.
func (d *Daemon) tail() string {
	text := strings.TrimSpace(d.Log())
	if at := crashes.FindStringIndex(text); at != nil {
		return oneLine(text[at[0]:], 400)
	}
	text = oneLine(text, 2*len(text))
	return text[max(0, len(text)-400):]
}

// Stop asks the daemon to stop, as `shunt stop` does, which detaches all, and
// waits until it has ended.
func (d *Daemon) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), startup)
	defer cancel()
	if err := d.request(ctx, http.MethodPost, "/v1/stop"); err != nil {
		return err
	}
	select {
	case <-d.exited:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("lab: shunt run (pid %d) does not stop: %s", d.PID(), d.tail())
	}
}

// Signal sends the daemon a signal.
func (d *Daemon) Signal(s os.Signal) error { return d.cmd.Process.Signal(s) }

// Kill9 ends the daemon without giving it a chance, and waits until it is gone.
// What it has pinned stays.
func (d *Daemon) Kill9() {
	if err := d.cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		<-d.exited
	}
}

// Wait returns how the daemon ended, once it has.
func (d *Daemon) Wait() error {
	<-d.exited
	return d.err
}

// request sends one request to the API and wants a status of 2xx.
func (d *Daemon) request(ctx context.Context, method, path string) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.Socket())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://shunt"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("lab: %s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("lab: %s %s: %s", method, path, resp.Status)
	}
	return nil
}
