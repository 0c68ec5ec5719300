// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"
)

// takesFile has the shell complete a command's arguments as file names.
func takesFile(cmd *cobra.Command) *cobra.Command {
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveDefault)
	return cmd
}

// interfaces completes names of network interfaces.
func interfaces(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	entries, _ := os.ReadDir("/sys/class/net")
	for _, e := range entries {
		if e.Name() != "lo" {
			names = append(names, e.Name())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
