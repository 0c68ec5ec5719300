// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// nearest returns the word that was meant: the one that begins as it was typed, else the one that the
// fewest slips lead to; "" if none is near.
func nearest(typed string, words []string) (near string) {
	least := 1 + max(1, len(typed)/3)
	for _, word := range words {
		slips := distance(typed, word)
		switch {
		case len(typed) > 1 && strings.HasPrefix(word, typed):
			slips = 0
		case swapped(typed, word):
			slips = 1
		}
		if slips < least {
			near, least = word, slips
		}
	}
	return near
}

// swapped reports whether two letters next to each other changed places.
func swapped(a, b string) bool {
	for i := 1; i < len(a) && len(a) == len(b); i++ {
		if a[:i-1]+a[i:i+1]+a[i-1:i]+a[i+1:] == b {
			return true
		}
	}
	return false
}

// distance counts the letters to be put in, taken out or changed (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// meant is "did you mean ...? ", or nothing.
func meant(typed string, words []string) string {
	if near := nearest(typed, words); near != "" {
		return fmt.Sprintf("did you mean %q? ", near)
	}
	return ""
}

// helpCommand is cobra's, with an error for what is no command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(about, args[len(args)-max(1, len(rest))])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}
