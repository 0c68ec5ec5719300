// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// PinRouteProgram loads a program that lets every packet pass, for a route (ip route ... encap bpf KIND pinned
// PATH), and returns where it is pinned. kind is "in", "out" or "xmit". It goes with the lab.
func (r *Rig) PinRouteProgram(kind string) (path string, err error) {
	types := map[string]ebpf.ProgramType{"in": ebpf.LWTIn, "out": ebpf.LWTOut, "xmit": ebpf.LWTXmit}
	const ok = 0 // BPF_OK of enum bpf_ret_code
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "route_" + kind, Type: types[kind], License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ok), asm.Return()},
	})
	if err != nil {
		return "", fmt.Errorf("route program %s: %w", kind, err)
	}
	defer prog.Close()
	path = filepath.Join(filepath.Dir(r.BPFFS()), "route-"+kind)
	return path, prog.Pin(path)
}
