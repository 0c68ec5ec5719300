// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
)

// Head says what was measured, how, and where. It begins every report.
type Head struct {
	Bench   string    `json:"bench"`
	What    string    `json:"what"`    // is measured, in a sentence
	How     string    `json:"how"`     // it is measured, in a sentence
	Command string    `json:"command"` // that measures it again
	Rounds  int       `json:"rounds"`
	Date    time.Time `json:"date"`
	Version string    `json:"version"` // of shunt
	Kernel  string    `json:"kernel"`  // release
	CPU     string    `json:"cpu"`     // model
	Cores   int       `json:"cores"`
	Load    float64   `json:"load"`  // average of the minute before; a quiet machine has less than 0.5
	Clang   string    `json:"clang"` // the one that make takes
}

// Target is a figure that is wanted.
type Target struct {
	Name   string  `json:"name"`
	Got    float64 `json:"got"`
	Limit  float64 `json:"limit"`
	AtMost bool    `json:"at_most"` // Got may not be above Limit; else not below
	Pass   bool    `json:"pass"`
}

func atLeast(name string, got, limit float64) Target {
	return Target{Name: name, Got: got, Limit: limit, Pass: got >= limit}
}

func atMost(name string, got, limit float64) Target {
	return Target{Name: name, Got: got, Limit: limit, AtMost: true, Pass: got <= limit}
}

// Missed counts the targets that were not reached.
func Missed(targets []Target) (n int) {
	for _, t := range targets {
		if !t.Pass {
			n++
		}
	}
	return n
}

// Options are common to all benches.
type Options struct {
	Rounds int // 0: the bench's own number
	// Binary is the shunt program whose daemon is measured.
	Binary string
	// Say takes the progress, piece by piece: a round begins its line, adds each phase
	// as it is done, and ends the line.
	Say func(format string, args ...any)
}

// Executable is the running program, for Options.Binary.
func Executable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("bench: which program is this? %w", err)
	}
	return path, nil
}

// head fills in what is the same for all benches, and the rounds into o.
func (o *Options) head(bench string, rounds int, what, how string) Head {
	if o.Rounds == 0 {
		o.Rounds = rounds
	}
	h := Head{
		Bench: bench, What: what, How: how, Rounds: o.Rounds,
		Command: fmt.Sprintf("shunt bench %s --rounds %d", bench, o.Rounds),
		Date:    time.Now().UTC().Truncate(time.Second), Version: api.Version(),
		CPU: cpuModel(), Cores: runtime.NumCPU(), Clang: clang(),
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.Load = float64(info.Loads[0]) / (1 << 16) // SI_LOAD_SHIFT
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return h
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// clang is the compiler's own first line. The objects do not say what made them.
func clang() string {
	out, err := exec.Command("clang-19", "--version").Output()
	if err != nil {
		return "not installed"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// errInterrupted is what a bench returns that was not let finish.
var errInterrupted = errors.New("interrupted; the lab is removed")

// interrupted turns whatever failed after ctx ended into one word.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}
