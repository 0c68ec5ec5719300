// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/config"
)

func (e *env) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config {check|show}",
		Short: "Check a configuration file, or show what is in force",
		Long: `The configuration is a file, ` + config.DefaultFile + ` where no other is named, and the flags of
"shunt run", which win over it. docs/config.md explains every key.`,
		Example: `  shunt config check ./shunt.toml
  shunt config show`,
	}
	group(cmd, e.configCheck(), e.configShow())
	return cmd
}

func (e *env) configCheck() *cobra.Command {
	return takesFile(&cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a file without using it",
		Long: `Reads a configuration file as "shunt run" would, and reports the first wrong line with
what is allowed there. Neither a daemon nor root is needed. Exit code 0: valid; 2: not.`,
		Example: `  shunt config check
  shunt config check ./shunt.toml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			source := config.Source{File: config.DefaultFile}
			if len(args) == 1 {
				source.File = args[0]
			}
			loaded, err := load(source)
			if err == nil {
				_, err = fmt.Fprintf(e.out, "%s: valid\n", loaded.Read)
			}
			return err
		},
	})
}

func (e *env) configShow() *cobra.Command {
	return e.reader(&cobra.Command{
		Use:   "show",
		Short: "Show every value, its default and where it was set",
		Long: `Asks the daemon for the values in force. Where none runs, shows what the next "shunt run"
without flags would take from ` + config.DefaultFile + `.`,
		Example: `  shunt config show
  shunt config show --json | jq '.[] | select(.from != "default")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := e.client().Config(cmd.Context())
			if errors.Is(err, api.ErrNoDaemon) {
				fmt.Fprintln(e.err, "shunt: no daemon runs; this is what the next one would begin with")
				settings, err = nextSettings()
			}
			if err != nil {
				return err
			}
			return e.show(settings, func(p *page) { printSettings(p, settings) })
		},
	})
}

// nextSettings are those of the default file. A file without ports is worth showing, too.
func nextSettings() ([]api.Setting, error) {
	loaded, err := config.Source{}.Load()
	if err != nil && len(loaded.Ports) > 0 {
		return nil, asUsage(err)
	}
	return api.SettingsOf(&loaded), nil
}

func printSettings(p *page, settings []api.Setting) {
	t := newTable("KEY", "VALUE", "DEFAULT", "FROM")
	for _, s := range settings {
		value, from := cell{s.Value, plain}, cell{s.From, dim}
		if s.From != "default" {
			value.style, from.style = bold, plain
		}
		t.add(s.Key, value, s.Default, from)
	}
	p.table(t)
}

func (e *env) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Apply the configuration file to the running daemon",
		Long: `Has the daemon read its file again, as SIGHUP does, and reports what came of it. The daemon
applies the whole file or, if a line of it is wrong or cannot be applied without a restart
("flows", "labels"), nothing. Flows go on; each proves itself anew under the new settings.`,
		Example: `  shunt reload
  shunt config check && shunt reload`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.client().Reload(cmd.Context()) },
	}
}

// load reads a source; what is wrong in it is a wrong use, a file that cannot be read is not.
func load(source config.Source) (config.Effective, error) {
	loaded, err := source.Load()
	return loaded, asUsage(err)
}

func asUsage(err error) error {
	var bad *config.Error
	var flag *config.FlagError
	if errors.As(err, &bad) || errors.As(err, &flag) {
		return usageError{err}
	}
	return err
}
