// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"path/filepath"
	"strings"
)

// maxSocketPath is what fits into sockaddr_un with its zero.
const maxSocketPath = 107

// rawMetrics is [metrics] as it is typed.
type rawMetrics struct {
	Listen *string `toml:"listen"`
}

// applyMetrics gives cfg what [metrics] says.
func (f *file) applyMetrics(cfg *Config, r *rawMetrics) error {
	for _, e := range f.entries {
		if e.pattern() != "metrics.listen" {
			continue
		}
		if r.Listen == nil || !validListen(*r.Listen) {
			return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed["metrics.listen"])
		}
		cfg.MetricsListen = *r.Listen
	}
	return nil
}

// validListen reports whether a word is "", the path of a unix socket, ADDRESS:PORT or :PORT. Names of
// hosts are not taken: where to listen must not hang on a resolver.
func validListen(s string) bool {
	if s == "" {
		return true
	}
	if strings.HasPrefix(s, "/") {
		return filepath.Clean(s) == s && len(s) <= maxSocketPath && s != "/"
	}
	if strings.HasPrefix(s, ":") {
		s = "0.0.0.0" + s
	}
	at, err := netip.ParseAddrPort(s)
	return err == nil && at.Port() != 0
}
