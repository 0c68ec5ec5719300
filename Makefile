# SPDX-License-Identifier: Apache-2.0
# make test and make demo each do all that is needed, from a fresh clone, as root.
# "make help" lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Why each package is here: docs/decisions/dependencies.md.
PACKAGES := bpftool busybox-static ca-certificates clang-19 conntrack ethtool git iperf3 iproute2 ipset ipvsadm \
	iptables iputils-ping kmod libbpf-dev libclang-rt-19-dev linux-libc-dev llvm-19 mmdebstrap nftables procps python3-scapy \
	qemu-system-x86 xz-utils zstd

# Go's own instructions put it there, and sudo forgets about it.
export PATH := $(PATH):/usr/local/go/bin
export CGO_ENABLED := 0
# Go asks git for the commit that a build is of (shunt version); git answers root about a clone
# that belongs to another user only if it is told to.
export GIT_CONFIG_COUNT := 1
export GIT_CONFIG_KEY_0 := safe.directory
export GIT_CONFIG_VALUE_0 := *

GENERATED := $(foreach o,tc xdp mpls health traffic/bpf,$(addprefix internal/dataplane/$(o)_x86_bpfel,.go .o))
BENCHES := firewall flows rules tcp connections instructions changes attacks labels
# The cases of `shunt bench instructions` that are ours to change.
OURS := shunt-xdp shunt-xdp6 shunt-tc shunt-tax shunt-swap shunt-swap-million shunt-php shunt-pop shunt-push shunt-pop-swap

.PHONY: help deps go root generate build deb test test-noisy test-vm test-nic test-package interop conformance change chaos fuzz demo bench bench-check bench-baseline lint fmt clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps: go ## install the Debian packages that building and testing need
	@command -v dpkg-query >/dev/null || { echo "make deps: this is no Debian; install what these packages hold: $(PACKAGES)" >&2; exit 1; }; \
	missing=; for p in $(PACKAGES); do \
		[ "$$(dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing+=" $$p"; \
	done; \
	[ -z "$$missing" ] || { \
		[ "$$(id -u)" = 0 ] || { echo "make deps: run it as root, to install:$$missing" >&2; exit 1; }; \
		echo "make deps: installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
		apt-get -q update && apt-get -q install -y --no-install-recommends $$missing; }

go:
	@want=$$(awk '$$1 == "go" { print $$2 }' go.mod); \
	have=$$(go version 2>/dev/null | sed -nE 's/^go version go([0-9.]+).*/\1/p'); \
	[ -n "$$have" ] && printf '%s\n' "$$want" "$$have" | sort -V -C || { \
		echo "make: Go $$want or later is needed, PATH has $${have:-none}; install it as https://go.dev/doc/install says, then run make again" >&2; exit 1; }

root:
	@[ "$$(id -u)" = 0 ] || { echo "make: network namespaces and BPF need root; run it again with sudo" >&2; exit 1; }

generate: $(GENERATED) ## compile bpf/ into objects for Go (not committed)

$(GENERATED) &: $(wildcard bpf/*.c bpf/*.h internal/dataplane/gen.go internal/dataplane/traffic/gen.go) | deps
	go generate ./internal/dataplane/...
	@touch $(GENERATED)

build: deps generate ## build build/shunt
	go build -buildvcs=auto -trimpath -o build/shunt ./cmd/shunt

deb: build ## build the Debian package, build/shunt_VERSION_ARCH.deb
	go build -buildvcs=auto -trimpath -ldflags '-s -w' -o build/deb/shunt ./cmd/shunt
	packaging/deb/build.sh build/deb/shunt build

test: root build lint ## check and test everything, Debian's kernels in short; needs root
	go run ./test/run

SEED := 0
test-noisy: root build lint ## test everything on CPUs that are taken away now and then, each test once; SEED=N repeats a run
	go run ./test/run -noisy -seed $(SEED)

test-vm: root build ## run all of e2e and twin under Debian's kernel 6.12, emulated; minutes
	go test -count=1 -v -parallel 3 -timeout 1h ./test/vm -full

test-nic: root build ## run shunt at its defaults on the network cards that QEMU emulates; minutes
	go test -count=1 -v -timeout 1h ./test/nic -boot

test-package: root build ## build the package twice; install, start, crash, upgrade and purge it in a clean Debian, emulated; minutes
	go test -count=1 -v -timeout 1h ./test/package -full

interop: root build ## send a million packets over paths of shunt's and the kernel's MPLS, in Debian's kernel 6.12, emulated; ten minutes
	go test -count=1 -v -timeout 1h ./test/vm -run TestSuites -suite interop

conformance: root build ## write docs/mpls-conformance.md: every MPLS case, of shunt and of Debian's kernel 6.12, emulated; minutes
	go test -count=1 -v -timeout 30m ./test/mpls -run 'TestConformance$$' -vm -update

change: root build ## make every kind of change 30 times, and assert how soon each is obeyed; a quarter of an hour
	go test -count=1 -v -timeout 1h ./test/change -run TestChanges -times 30 -strict
	go test -count=1 -v ./test/e2e -run TestPeerStopsTakingFrames -strict

chaos: root build ## do at random, for ten minutes, what can be done to a router and to daemons
	go test -count=1 -v -timeout 1h ./test/change -run TestChaos -chaos 10m -bound 120ms

fuzz: deps ## fuzz the headers of bpf/ as native code, 10 minutes each
	go test -count=1 -v -timeout 1h ./test/fuzz -run TestNative -for 10m

demo: root build ## show a firewall with shunt off, on and off again, in two minutes
	build/shunt lab firewall run

bench: root build ## measure everything in docs/bench.md; the machine should be quiet
	@for b in $(BENCHES); do echo "== shunt bench $$b"; build/shunt bench $$b || failed=1; done; exit $${failed:-0}

bench-check: root build ## count instructions: fail if a case of shunt costs over 2 % more than bench/baseline.json
	build/shunt bench instructions --rounds 1 --baseline bench/baseline.json $(OURS)

bench-baseline: root build ## write bench/baseline.json anew; commit it alone, with the reason
	build/shunt bench instructions --rounds 2 --write-baseline bench/baseline.json $(OURS)

lint: deps generate ## gofmt, go vet, staticcheck (the rules of the tree are tests: test/rules)
	@bad=$$(gofmt -l cmd internal packaging test); [ -z "$$bad" ] || { echo "not as gofmt writes it (make fmt):" $$bad >&2; exit 1; }
	go vet ./...
	go tool staticcheck ./...

fmt: deps ## write Go as gofmt does
	gofmt -w cmd internal packaging test

clean: ## remove what was built
	rm -rf build $(GENERATED)
