// SPDX-License-Identifier: Apache-2.0

package api

import "runtime/debug"

// release is the number of the version under way; CHANGELOG.md says what it holds.
const release = "0.1.0"

// Version names this program: its release and, where the build knows it, its commit.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	version, changed := release, false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			version += "+" + s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}
	if changed {
		version += ".changed"
	}
	return version
}
