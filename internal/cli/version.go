// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

// version is what `shunt version --json` prints.
type version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
}

func (e *env) versionCommand() *cobra.Command {
	return e.reader(&cobra.Command{
		Use:     "version",
		Short:   "Say which shunt this is",
		Long:    `Says the version of this program. That of a running daemon is in "shunt status".`,
		Example: `  shunt version`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := version{api.Version(), runtime.Version()}
			return e.show(v, func(p *page) { p.line("%s", v) })
		},
	})
}

// String is also what `shunt --version` prints.
func (v version) String() string { return fmt.Sprintf("shunt %s, built with %s", v.Version, v.Go) }
