// SPDX-License-Identifier: Apache-2.0

package traffic

// Made by `make generate` and not committed, like the objects of the data path.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64 bpf ../../../bpf/traffic.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu
