// SPDX-License-Identifier: Apache-2.0

package dataplane

// The objects are made from bpf/ by `make generate` and not committed: clang is needed
// for this package alone. clang-19 is pinned, others give larger programs.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64 -no-global-types -type reason -type stage -type slot_state -type slot_flag -type port_flag -type abi -type loaded -type kind -type event_kind -type mark_magic -type slot -type bucket -type control -type tally -type port -type transmit -type event -type difference -type notebook -type sample -type form -type flow_key -type flow_words -type policies -type policy_rule -type policy_bank -type policy_size -type policy_state -type policy_counter -type member -type rate -type meter -type prefix4 -type prefix6 tc ../../bpf/tc.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64 -no-global-types xdp ../../bpf/xdp.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64 -no-global-types health ../../bpf/health.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64 -no-global-types -type mpls_size -type nhlfe_end -type nhlfe_flag -type push_flag -type nhlfe_need -type program -type nhlfe -type push -type choice -type label_map -type adjacency -type label_port -type segment -type segment_pair -type loss -type ilm -type swap mpls ../../bpf/mpls.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu
