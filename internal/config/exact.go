// SPDX-License-Identifier: Apache-2.0

package config

// Exact are the ports that are named without wildcards: those that must be there when
// the daemon starts.
func (c Config) Exact() []string {
	var names []string
	for _, name := range c.Ports {
		if !isPattern(name) {
			names = append(names, name)
		}
	}
	return names
}
