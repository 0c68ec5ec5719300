// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Reports write a table and charts that are what their names say.
func TestWriteFiles(t *testing.T) {
	var s = Spread{Median: 1e6, Min: 1e6, Max: 2e6}
	router := &LSRReport{Sizes: []int{60, 1500}}
	for cores := 1; cores <= 2; cores++ {
		for _, size := range router.Sizes {
			for _, op := range LSROperations() {
				router.Results = append(router.Results, LSRResult{Operation: op, Cores: cores, Bytes: size, PPS: s, OfIP: s, OfKernel: s, OfLimit: s})
			}
		}
	}
	row := &ChainReport{Hops: []int{1, 2}, Sizes: []int{60}}
	for _, way := range ChainWays() {
		for _, hops := range row.Hops {
			if way == ChainMPLS && hops == 1 {
				continue
			}
			row.Results = append(row.Results, ChainResult{Way: way, Hops: hops, Bytes: 60, Median: s})
		}
	}
	begins := map[string]string{".svg": "<?xml", ".png": "\x89PNG", ".md": "# "}
	for _, c := range []struct {
		report interface{ WriteFiles(string) error }
		files  []string
	}{
		{router, []string{"lsr.md", "lsr-1-core.svg", "lsr-1-core.png", "lsr-2-cores.svg", "lsr-2-cores.png"}},
		{row, []string{"chain.md", "chain.svg", "chain.png"}},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		if err := c.report.WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range c.files {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !bytes.HasPrefix(text, []byte(begins[filepath.Ext(name)])) {
				t.Errorf("%s: %v: %.20q", name, err, text)
			}
		}
	}
	for _, empty := range []interface{ WriteFiles(string) error }{&LSRReport{}, &ChainReport{}} {
		if err := empty.WriteFiles(t.TempDir()); err == nil {
			t.Errorf("%T without figures is written", empty)
		}
	}
}
