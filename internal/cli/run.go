// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/config"
)

func (e *env) runCommand() *cobra.Command {
	var file string
	var ports []string
	var replace bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Be the daemon, in the foreground",
		Long: `Attaches to the ports and keeps the fast path true to the kernel. Logs go to stderr. The
configuration is ` + config.DefaultFile + `, if it exists, or the file that --config names. Flags win over
the file; --port adds to its ports.

SIGTERM and Ctrl-C end the daemon and leave its programs attached: they go on repeating, and
each lease ends by itself. The next "shunt run" takes over; "shunt stop" removes everything.
With --replace a daemon that lives is ended first, in this way: not a packet is lost.`,
		Example: `  shunt run --port eth0 --port 'lan*'
  shunt run --config ./shunt.toml --xdp off
  shunt run --replace`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := configure(file, ports, cmd.Flags())
			if err != nil {
				return err
			}
			if RunDaemon == nil {
				return errors.New("run: this program was built without the daemon; build ./cmd/shunt")
			}
			if replace && Replace != nil {
				if err := Replace(cmd.Context(), e.paths); err != nil {
					return err
				}
			}
			return RunDaemon(cmd.Context(), cfg, e.paths)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "TOML `file` with the configuration (default "+config.DefaultFile+", if it exists)")
	flags.BoolVar(&replace, "replace", false, "take over from the daemon that lives, without a gap")
	flags.StringArrayVar(&ports, "port", nil, "`interface` to attach to, wildcards allowed; may be repeated")
	cmd.MarkFlagFilename("config", "toml")
	cmd.RegisterFlagCompletionFunc("port", interfaces)
	// Words, not numbers: Config.Set judges them as it judges the file's.
	flags.String("xdp", string(config.XDPAuto), "where to use XDP, a `mode`: auto, on or off")
	flags.String("threshold", fmt.Sprint(config.DefaultThreshold), "`packets` before a flow is learned")
	flags.String("lease", config.DefaultLease.String(), "how long an entry may be used unproven, a `duration`")
	return cmd
}

// configure takes the file, if any, and then the flags that were given.
func configure(file string, ports []string, flags *pflag.FlagSet) (config.Effective, error) {
	source := config.Source{File: file}
	for _, port := range ports {
		source.Flags = append(source.Flags, config.Flag{Key: "port", Value: port})
	}
	for _, key := range []string{"xdp", "threshold", "lease"} {
		if flag := flags.Lookup(key); flag.Changed {
			source.Flags = append(source.Flags, config.Flag{Key: key, Value: flag.Value.String()})
		}
	}
	loaded, err := load(source)
	if err != nil && !errors.As(err, &usageError{}) {
		return loaded, fmt.Errorf("--config: %w", err)
	}
	return loaded, err
}

// stopPatience is how long a daemon may take to leave nothing behind.
const stopPatience = 20 * time.Second

func (e *env) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "End the daemon and leave nothing attached",
		Long: `Ends the daemon and waits until it is gone, with its programs and maps. Where a daemon
died, or could not remove all, what it left is removed; the state directory knows where
that is pinned.`,
		Example: `  shunt stop`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), stopPatience)
			defer cancel()
			err := stopDaemon(ctx, e.client())
			if errors.Is(err, api.ErrNoAnswer) {
				return e.endHung(err)
			}
			// what a living one could not remove is told here, not only in its log
			if (err == nil || errors.Is(err, api.ErrNoDaemon)) && CleanUp != nil {
				return CleanUp(e.paths)
			}
			return err
		},
	}
}

// endHung says how to end a daemon that does not answer.
func (e *env) endHung(err error) error {
	status, failed := orPinned(e, api.Status{}, err, Unattended.Status)
	if failed != nil || status.PID == 0 {
		return err
	}
	return fmt.Errorf("stop: the daemon, pid %d, does not answer; end it with \"kill -9 %[1]d\", then run %q again", status.PID, e.paths.Command("stop"))
}

// stopDaemon returns when the daemon's process has ended. The process is watched and not
// the socket or the lock: only its end says that all its work is done.
func stopDaemon(ctx context.Context, client *api.Client) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(status.PID, 0)
	if err != nil {
		return fmt.Errorf("stop: cannot watch the daemon, pid %d: %w", status.PID, err)
	}
	defer unix.Close(pidfd)
	if err := client.Stop(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 100); n > 0 {
			return nil
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("stop: cannot watch the daemon, pid %d: %w", status.PID, err)
		}
	}
	return fmt.Errorf("stop: the daemon, pid %d, was told to end and is still there; see its log", status.PID)
}

func (e *env) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "Send everything to the kernel, detaching nothing",
		Long: `From the next packet on, everything takes the kernel's way; programs and entries stay.
It is the quickest way to see whether shunt has a part in a fault. It works without a daemon, too,
and outlasts the daemon.`,
		Example: `  shunt pause && sleep 10 && shunt resume`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return e.pause(cmd.Context(), true) },
	}
}

func (e *env) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume",
		Short:   "End a pause",
		Long:    `Lets shunt repeat packets again. Entries whose lease ended meanwhile are proved first.`,
		Example: `  shunt resume`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return e.pause(cmd.Context(), false) },
	}
}
