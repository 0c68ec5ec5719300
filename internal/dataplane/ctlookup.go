// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"sync"

	"github.com/cilium/ebpf/btf"
)

// ctLookup is a function of net/netfilter/nf_conntrack_bpf.c; what else programs need is beside it.
const ctLookup = "bpf_xdp_ct_lookup"

// ctLookups is 1 if programs can look conntrack up: it is in the kernel, or a module that is loaded. Only a process
// with CAP_SYS_ADMIN can refer to a module's functions.
var ctLookups = sync.OnceValue(func() int {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return 0
	}
	var f *btf.Func
	if kernel.TypeByName(ctLookup, &f) == nil {
		return 1
	}
	module, err := btf.LoadKernelModuleSpec("nf_conntrack")
	if err != nil || module.TypeByName(ctLookup, &f) != nil {
		return 0
	}
	it := new(btf.HandleIterator)
	defer func() { it.Handle.Close() }()
	for it.Next() {
	}
	if it.Err() != nil {
		return 0
	}
	return 1
})
