// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"shunt/internal/vm"
)

// kernelInVM runs the same cases against the MPLS of Debian's kernel, in a virtual machine:
// this program once more, there. It returns the file of the results.
func kernelInVM(t *testing.T) (file []byte, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	share := t.TempDir()
	var out bytes.Buffer
	// Timers mean the same however busy this machine is.
	code, err := vm.Run(t.Context(), vm.Options{
		Command: []string{self, "-test.run=^TestConformance$", "-test.v", "-router=kernel", "-results=" + filepath.Join(vm.ShareDir, "results.json")},
		Modules: []string{"mpls_router", "mpls_iptunnel"},
		Share:   share, ICount: true, RealIdle: true, Timeout: 30 * time.Minute, Output: &out, Progress: os.Stdout,
	})
	if err != nil || code != 0 {
		return nil, fmt.Errorf("the kernel in the virtual machine: exit code %d, %v\n%s", code, err, &out)
	}
	return os.ReadFile(filepath.Join(share, "results.json"))
}
