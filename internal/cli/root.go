// SPDX-License-Identifier: Apache-2.0

// Package cli is the shunt command: one binary whose `run` is the daemon and whose other
// commands are its clients.
//
// Nouns read (status, ports, flows, top, explain, doctor) and verbs write (run, stop,
// pause, resume); mpls has tables, with a verb behind each as iproute2 has. Every noun asks the daemon's API, and prints the answer through one
// printer: as a text for people, or with --json exactly as the API gave it. Exit codes:
// 0 done, 1 failed, 2 wrong use; an error is one line on stderr.
//
// The package knows neither BPF nor netlink: what needs them is handed in by main as
// function values. New commands are added to Run's list, one file for each.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/config"
)

// What main provides. They are set before Run and not changed afterwards.
var (
	// RunDaemon is the daemon, until ctx ends or a client stops it.
	RunDaemon func(ctx context.Context, cfg config.Effective, paths config.Paths) error
	// Replace ends a daemon that lives, leaving its data path to the next one.
	Replace func(ctx context.Context, paths config.Paths) error
	// CleanUp removes what a dead daemon left pinned. It refuses while one lives, and does
	// nothing if nothing is left.
	CleanUp func(paths config.Paths) error
	// Doctor examines the machine, and ports by name, without a daemon.
	Doctor func(paths config.Paths, ports []string) ([]api.Check, error)
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// now is the clock; tests stop it.
var now = time.Now

// env is what a command works with.
type env struct {
	out, err io.Writer
	paths    config.Paths
	json     bool

	unattended bool // the last answer came from what is pinned
	hung       bool // because a daemon lives and does not answer
}

func (e *env) client() *api.Client { return api.NewClient(e.paths.Socket()) }

// usageError is an error of the one who typed the command.
type usageError struct{ error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// Run is the shunt command: it does what args (without the program's name) say and
// returns the exit code. SIGINT and SIGTERM end it in good order; a second one at once.
func Run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	e := &env{out: stdout, err: stderr}
	root := e.root()
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(stderr, "shunt: "+oneLine(err))
	if errors.As(err, &usageError{}) {
		return exitUsage
	}
	return exitFailed
}

// oneLine is an error, or several that were joined, in one line.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if words := strings.Fields(line); len(words) > 0 {
			parts = append(parts, strings.TrimSuffix(strings.Join(words, " "), ";"))
		}
	}
	return strings.Join(parts, "; ")
}

// Commands returns the tree of commands: packaging/gen makes manual pages and completion from it.
func Commands() *cobra.Command { return (&env{out: io.Discard, err: io.Discard}).root() }

// root builds the tree of commands.
func (e *env) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "shunt",
		Short: "A fast path beside the Linux network stack",
		Long: `shunt watches what the kernel does with a flow's first packets, and does the same to
the rest of them at a fraction of the cost. It keeps asking the kernel: every entry is a
lease that the kernel must prove again, and any change it announces is obeyed at once.`,
		Example: `  shunt run --port eth0 --port eth1
  shunt status`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version{api.Version(), runtime.Version()}.String(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true // the package has the scripts
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.SetHelpCommand(helpCommand())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(e.out)
	root.SetErr(e.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s: %w; see %q", cmd.Name(), err, cmd.CommandPath()+" --help")
	})
	flags := root.PersistentFlags()
	flags.StringVar(&e.paths.State, "state", config.DefaultState, "`directory` of the daemon's lock and socket")
	flags.StringVar(&e.paths.BPFFS, "bpffs", config.DefaultBPFFS, "`directory` in a bpf file system for programs and maps")

	root.AddCommand(
		e.runCommand(), e.stopCommand(), e.reloadCommand(), e.pauseCommand(), e.resumeCommand(),
		e.statusCommand(), e.portsCommand(), e.flowsCommand(), e.topCommand(), e.explainCommand(),
		e.doctorCommand(), e.configCommand(), e.labCommand(), e.benchCommand(), e.versionCommand(), e.mplsCommand(),
	)
	return root
}

func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return usagef("%s: no such command; %ssee %q", word, meant(word, names), cmd.CommandPath()+" --help")
}

// noArgs refuses words behind a command that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s: takes no argument %q; see %q", cmd.Name(), args[0], cmd.CommandPath()+" --help")
	}
	return nil
}

// reader adds --json to a command that reads.
func (e *env) reader(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&e.json, "json", false, "print JSON, as the API gives it")
	return cmd
}

// isTerminal tells whether a stream is a person's screen or keyboard.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && terminalSize(f) != (size{})
}
