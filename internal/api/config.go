// SPDX-License-Identifier: Apache-2.0

package api

import "shunt/internal/config"

// SettingsOf lists the values of a configuration.
func SettingsOf(e *config.Effective) []Setting {
	var all []Setting
	for _, s := range e.Settings() {
		all = append(all, Setting(s))
	}
	return all
}
