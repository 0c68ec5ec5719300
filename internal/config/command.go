// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

// Command is a shunt command line for this daemon, as an operator would type it.
func (p Paths) Command(words string) string {
	var b strings.Builder
	b.WriteString("shunt " + words)
	if p.State != DefaultState {
		b.WriteString(" --state " + p.State)
	}
	if p.BPFFS != DefaultBPFFS {
		b.WriteString(" --bpffs " + p.BPFFS)
	}
	return b.String()
}
