// SPDX-License-Identifier: Apache-2.0

// Package fuzz throws at shunt what nobody would think of writing down.
//
// native/ has C targets for libFuzzer: the headers of bpf/ that compile for this machine
// too, each beside a slow oracle that must say the same, under ASan and UBSan. The frame of
// an input ends where its memory ends, so one byte read too far is seen.
//
//	go test ./test/fuzz                          30 s of each: part of `make test`
//	go test ./test/fuzz -for 10m -timeout 1h     `make fuzz`
//	go test ./test/fuzz -for 10m -keep           and adds what was new to the corpora
//
// The other half, random traffic through two routers, is test/twin's TestFuzz. It needs
// clang-19 with its run time, no root.
package fuzz

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	length = flag.Duration("for", 30*time.Second, "how long each target runs")
	keep   = flag.Bool("keep", false, "add what covers something new to native/corpus")
)

// Every finding is a case here from the day it was found, and so are inputs that fuzzing
// alone would hardly find. Each is run before any fuzzing.
var cases = []struct{ target, what, input string }{
	{"parse", "IPv4 without options or anything wrong, UDP, ECT(1), 3 bytes of trailer",
		"0400 020000000001 020000000002 0800 45010024000040004011000000c61200020c613002 0fa0 1b58 0010 0000 0102030405060708 aabbcc"},
	{"parse", "a frame that ends right behind an IPv4 header",
		"0400 020000000001 020000000002 0800 4500001400004000401100000a0000010a000002"},
	{"parse", "IPv6, TCP, whose last two bytes of header are not linear",
		"2002 020000000001 020000000002 86dd 600000000014063f 20010002000000180000000000000002 20010002000000190000000000000002 0fa01b58 00000001 00000001 5010fff0 00000000"},
	{"parse", "an upstream-assigned label, which is not IP but has a word of its own",
		"0400 020000000001 020000000002 8848 00064140"},
	{"parse", "IPv6 payload length 0: a jumbogram",
		"0000 020000000001 020000000002 86dd 600000000000113f 20010002000000180000000000000002 20010002000000190000000000000002 0fa01b5800080000"},
	{"edit", "the other zero as IPv4's checksum, source NAT, UDP without a checksum",
		"45 01b8 0200000000030200000000 04 c6130001000000000000000000000000 c6130002000000000000000000000000 9c40 1b58 00000000000000000000000000000000" +
			"020000000001 020000000002 0800 450000240000400040110000c6120002c6130002 0fa0 1b58 0010 0000 0102030405060708"},
	{"edit", "IPv6 echo, NAT of addresses and id",
		"22 0100 020000000003020000000004 20010002000000190000000000000001 20010002000000190000000000000002 9c40 0000 00000000000000000000000000000000" +
			"020000000001 020000000002 86dd 600000000010 3a40 20010002000000180000000000000002 20010002000000190000000000000002 8000 0000 0fa0 0001 0102030405060708"},
	{"edit", "an echo reply of nothing but zeros behind NAT: its checksum is either zero",
		"ffff000000000000ffff3affff2e00ff0921ed00ff090e0000000000000000004000000000000000000000800000000000000000000000" +
			"00000000020000000000000000000000ffff3affffae01000000000000000900000064010050400024f4902600000000ffff0000000000"},
	{"flow", "a slot that is claimed, armed, and closed by the RST that is next in sequence",
		strings.Repeat("0102", 37) + "01" + "0000 00000001 00000001 fff0 00" + "0200 25 03e8 00" + "0300 0401 00 00000000"},
	{"flow", "the same RST, but for another machine",
		strings.Repeat("0102", 37) + "01" + "0000 00000001 00000001 fff0 00" + "0200 25 03e8 00" + "0300 0411 00 00000000"},
	{"flow", "the same with FIN, which is no RST to conntrack",
		strings.Repeat("0102", 37) + "01" + "0000 00000001 00000001 fff0 00" + "0200 25 03e8 00" + "0300 0501 00 00000000"},
	{"flow", "a SYN on a liberal connection, a RST that refuses it, and one that does not",
		strings.Repeat("0102", 37) + "01" + "0000 00000001 00000001 fff0 00" + "0200 25 03e8 00" + "0300 0200 03 10000000" + "0300 1480 03 40000000" + "0300 1400 03 40000000"},
	{"flow", "a FIN that fits the entry of another port, and a blind one that comes by yet another",
		strings.Repeat("0102", 37) + "01" + "0008 00000001 00000001 fff0 00" + "0208 25 03e8 00" + "030a 0100 03 00000065" + "030a 0100 03 40000000"},
	{"odd", "RST behind four bytes of IPv4 options",
		"04 020000000001 020000000002 0800 4600002c000040004006 0000 c6120002 c6130002 01010100 0fa01b58 00000001 00000001 5004fff0 00000000"},
	{"odd", "FIN behind a router alert hop by hop, a routing header and an atomic fragment",
		"00 020000000001 020000000002 86dd 60000000002c0040 20010002000000180000000000000002 20010002000000190000000000000002" +
			"2b00050200000100 2c00040000000000 0600000000000001 0fa01b58 00000001 00000001 5011fff0 00000000"},
	{"odd", "SYN behind an authentication header",
		"00 020000000001 020000000002 86dd 6000000000243340 20010002000000180000000000000002 20010002000000190000000000000002" +
			"06020000000000010000000100000000 0fa01b58 00000001 00000001 5002fff0 00000000"},
}

func TestNative(t *testing.T) {
	bin := t.TempDir()
	for _, target := range []string{"parse", "edit", "flow", "odd"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			program := build(t, bin, target)
			for _, c := range cases {
				if c.target == target {
					replay(t, program, c.what, c.input)
				}
			}
			play(t, program, filepath.Join("native", "corpus", target))
		})
	}
}

// build compiles a target. Alignment is not watched: native.h says why.
func build(t *testing.T, bin, target string) string {
	t.Helper()
	program := filepath.Join(bin, target)
	args := []string{"-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror",
		"-Wno-unknown-attributes", "-Wno-unused-function", "-Wno-unused-parameter",
		"-fsanitize=fuzzer,address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all",
		"-I../../bpf", filepath.Join("native", target+".c"), "-o", program}
	if out, err := exec.Command("clang-19", args...).CombinedOutput(); err != nil {
		t.Fatalf("clang-19 %s: %v; `make deps` installs what it needs\n%s", strings.Join(args, " "), err, out)
	}
	return program
}

// replay runs one input.
func replay(t *testing.T, program, what, input string) {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll(input, " ", ""))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, file).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// play runs the corpus, then fuzzes from there.
func play(t *testing.T, program, corpus string) {
	t.Helper()
	fresh, found := t.TempDir(), t.TempDir()
	args := []string{"-max_len=700", "-use_value_profile=1", "-verbosity=0", "-print_final_stats=1",
		"-max_total_time=" + strconv.Itoa(int(length.Seconds())), "-artifact_prefix=" + found + "/", fresh, corpus}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		files, _ := filepath.Glob(filepath.Join(found, "*"))
		for _, file := range files {
			data, _ := os.ReadFile(file)
			t.Errorf("add this input, described, to `cases`: %x", data)
		}
		return
	}
	for line := range bytes.Lines(out) {
		if bytes.HasPrefix(line, []byte("stat::number_of_executed_units")) {
			t.Logf("%s", bytes.TrimSpace(line))
		}
	}
	if !*keep {
		return
	}
	if out, err := exec.Command(program, "-set_cover_merge=1", "-max_len=700", corpus, fresh).CombinedOutput(); err != nil {
		t.Errorf("merge: %v\n%s", err, out)
	}
}
