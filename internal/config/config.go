// SPDX-License-Identifier: Apache-2.0

// Package config turns what the operator wrote, in a TOML file and in flags, into a
// checked Config that the daemon may use without looking again.
//
// It is strict: an unknown key, a wrong type or a value out of range is one line that
// names the file, the line, the key and what is allowed. Both sources go through
// Config.Set, so a flag and its key can never allow different things. The keys are told
// to people by reference.toml, which a test parses.
//
// Limits: it knows names, not interfaces. Whether a port exists, and which programs it
// can carry, is for the daemon to find out, again and again while it runs.
package config

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Places of a daemon that names none.
const (
	DefaultState = "/run/shunt"
	DefaultBPFFS = "/sys/fs/bpf/shunt"
)

// Paths are the places of one daemon. Two daemons may run side by side, in different
// network namespaces, if both directories differ.
type Paths struct {
	State string // directory of the lock, the socket and the journal
	BPFFS string // directory in a bpf file system, of the pinned programs and maps
}

// Socket is where the daemon answers.
func (p Paths) Socket() string { return filepath.Join(p.State, "api.sock") }

// Labels is the journal of the label tables.
func (p Paths) Labels() string { return filepath.Join(p.State, "mpls.journal") }

// Cards is the record of what was switched on network cards.
func (p Paths) Cards() string { return filepath.Join(p.State, "cards.json") }

// Lock is the file that the living daemon holds locked.
func (p Paths) Lock() string { return filepath.Join(p.State, "lock") }

// Mode says whether XDP may be used.
type Mode string

// The modes of XDP.
const (
	XDPAuto Mode = "auto" // where it is found to be faster
	XDPOn   Mode = "on"   // wherever the driver can
	XDPOff  Mode = "off"  // TC only
)

// Offloads says what may become of a card's offloads that hide from XDP what came in.
type Offloads string

// The modes of offloads.
const (
	OffloadsSwitch Offloads = "switch" // off while shunt runs, put back when it stops
	OffloadsKeep   Offloads = "keep"   // as they are, which means TC where they hide something
)

// Bounds of the values, and the defaults that do not depend on the machine.
const (
	DefaultThreshold = 10
	DefaultLease     = 4 * time.Second

	minLease, maxLease = 100 * time.Millisecond, 60 * time.Second
	minFlows, maxFlows = 1 << 10, 1 << 21 // more than 512 MB are not for a BPF program to address
	minAutoFlows       = 1 << 14
	maxAutoFlows       = 1 << 20
	flowSize           = 192 // bytes of a slot, SLOT_SIZE of bpf/abi.h
	flowShare          = 128 // of all memory, the table gets one part in this many
	sourceShare        = 4   // of the table, one source may hold one part in this many
	minSourceShare     = 1024
	maxNameLen         = 15 // IFNAMSIZ without the zero
)

// AutoSourceFlows stands for a quarter of the table.
const AutoSourceFlows = -1

// Label switching: the defaults, and the bounds.
const (
	DefaultLabels    = 4096
	minLabels        = 64
	maxLabels        = 1 << 20
	DefaultLabelHold = 2 * time.Minute // as long as a graceful restart takes: RFC 4781 6
	maxLabelHold     = 24 * time.Hour
)

// Config is what the daemon is to do. Every value is within its bounds.
type Config struct {
	Ports     []string        // interface names, shell wildcards allowed (path.Match)
	XDP       Mode            // for ports without an entry in PortXDP
	PortXDP   map[string]Mode // by name or wildcard; XDPFor picks
	Offloads  Offloads        // of physical ports
	TCP       bool            // false: TCP is never repeated
	Threshold uint32          // packets before a flow is learned, at least 1
	Lease     time.Duration   // how long an entry may be used unproven
	Flows     int             // slots of the flow table, a power of two
	Verify    uint32          // every Nth flow is proved each 250 ms; 0: none
	Policy    Policy          // which flows may be fast
	Mark      Mark            // for PolicyMark
	Exclude   []Flows         // never fast
	Include   []Flows         // if there are any: nothing else is fast

	SourceFlows int             // slots that one source may hold, or AutoSourceFlows; see SourceLimit
	Police      map[string]Rate // by reason, one of Policeable

	Labels    int           // entries of the label tables: so many labels, and so many NHLFEs
	LabelHold time.Duration // how long labels are switched with the daemon dead; 0: for ever

	MetricsListen string // ADDRESS:PORT, or the path of a unix socket; "": nowhere
}

// Default is the configuration of an empty file. It names no port.
func Default() Config {
	return Config{
		XDP:       XDPAuto,
		PortXDP:   map[string]Mode{},
		Offloads:  OffloadsSwitch,
		TCP:       true,
		Threshold: DefaultThreshold,
		Lease:     DefaultLease,
		Flows:     autoFlows(totalMemory()),
		Policy:    PolicyEstablished,
		Mark:      Mark{Value: 1, Mask: 1},

		SourceFlows: AutoSourceFlows,
		Police:      map[string]Rate{},

		Labels:    DefaultLabels,
		LabelHold: DefaultLabelHold,
	}
}

// totalMemory is the machine's memory in bytes, 0 if it cannot be told.
func totalMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// autoFlows is the number of slots for a machine with so many bytes of memory.
func autoFlows(memory uint64) int {
	flows := maxAutoFlows
	for flows > minAutoFlows && uint64(flows)*flowSize*flowShare > memory {
		flows /= 2
	}
	return flows
}

// allowed says for every key what it takes, as the end of the sentence "allowed ...".
// A star stands for a port's name. Those of single flows are in flows.go.
var allowed = map[string]string{
	"port":        `is a list of interface names or wildcards, such as ["eth0", "lan*"]`,
	"xdp":         `are "auto", "on", "off"`,
	"offloads":    `are "switch", "keep"`,
	"tcp":         `are "on", "off"`,
	"threshold":   "is a number of packets from 1 to 4294967295",
	"lease":       `is a duration from "100ms" to "60s"`,
	"flows":       "is a power of two from 1024 to 2097152",
	"verify":      "is a number from 0 to 4294967295: every Nth flow, 0 for none",
	"policy":      `are "established", "mark"`,
	"mark":        "is a table, [mark]",
	"mark.value":  "is a number from 0 to 0xffffffff",
	"mark.mask":   "is a number from 1 to 0xffffffff",
	"ports":       `is a table for each port, such as [ports."eth0"]; the list of interfaces is port = ["eth0"]`,
	"ports.*":     `is a table, such as [ports."eth0"]`,
	"ports.*.xdp": `are "auto", "on", "off"`,

	"source_flows": "is a number of slots from 0 to 2097152",
	"labels":       "is a number of entries from 64 to 1048576",
	"label_hold":   `is a duration from "0s" to "24h"`,
	"police":       "is a table of rates by reason, such as [police]",
	"police.*":     `is a rate from "1/s" to "10000000/s"`,

	"metrics":        "is a table, [metrics]",
	"metrics.listen": `is an address and port such as "127.0.0.1:9797" or "[::1]:9797", ":9797" for all addresses, the path of a unix socket, or ""`,
}

// valueError says what a key takes instead of what was given.
type valueError struct{ key, value string }

func (e valueError) Error() string {
	return fmt.Sprintf("%s %q: allowed %s", e.key, e.value, allowed[e.key])
}

// Set gives a key of the file ("port", "xdp", "offloads", "tcp", "threshold", "lease", "flows", "verify",
// "policy", "source_flows", "labels" or "label_hold") the value that is written there, or as a
// flag. "port" adds one. The error names key, value and what is allowed.
func (c *Config) Set(key, value string) error {
	ok := false
	switch key {
	case "port":
		if ok = validName(value); ok && !slices.Contains(c.Ports, value) {
			c.Ports = append(c.Ports, value)
		}
	case "xdp":
		ok = setMode(&c.XDP, value)
	case "offloads":
		c.Offloads = Offloads(value)
		ok = c.Offloads == OffloadsSwitch || c.Offloads == OffloadsKeep
	case "tcp":
		ok = value == "on" || value == "off"
		c.TCP = value == "on"
	case "threshold":
		n, err := strconv.ParseUint(value, 10, 32)
		ok = err == nil && n > 0
		c.Threshold = uint32(n)
	case "lease":
		d, err := time.ParseDuration(value)
		ok = err == nil && d >= minLease && d <= maxLease
		c.Lease = d
	case "flows":
		n, err := strconv.Atoi(value)
		ok = err == nil && n >= minFlows && n <= maxFlows && n&(n-1) == 0
		c.Flows = n
	case "verify":
		n, err := strconv.ParseUint(value, 10, 32)
		ok = err == nil
		c.Verify = uint32(n)
	case "policy":
		c.Policy = Policy(value)
		ok = c.Policy == PolicyEstablished || c.Policy == PolicyMark
	case "source_flows":
		n, err := strconv.Atoi(value)
		ok = err == nil && n >= 0 && n <= maxFlows
		c.SourceFlows = n
	case "labels":
		n, err := strconv.Atoi(value)
		ok = err == nil && n >= minLabels && n <= maxLabels
		c.Labels = n
	case "label_hold":
		d, err := time.ParseDuration(value)
		ok = err == nil && d >= 0 && d <= maxLabelHold
		c.LabelHold = d
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	if !ok {
		return valueError{key, value}
	}
	return nil
}

func setMode(m *Mode, value string) bool {
	*m = Mode(value)
	return *m == XDPAuto || *m == XDPOn || *m == XDPOff
}

// validName tells whether a word can be an interface's name or a wildcard for some, as
// dev_valid_name() of the kernel judges them.
func validName(s string) bool {
	if _, err := path.Match(s, ""); err != nil || s == "" || s == "." || s == ".." {
		return false
	}
	if !isPattern(s) && len(s) > maxNameLen {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f })
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// Wants tells whether an interface is to be a port.
func (c Config) Wants(name string) bool {
	return slices.ContainsFunc(c.Ports, func(pattern string) bool { return matches(pattern, name) })
}

// XDPFor is the mode of one port: its own, if an entry of PortXDP matches, else that of
// all. The port's very name counts before wildcards, a longer wildcard before a shorter.
func (c Config) XDPFor(name string) Mode {
	if mode, ok := c.PortXDP[name]; ok {
		return mode
	}
	best := ""
	for pattern := range c.PortXDP {
		longer := len(pattern) > len(best) || len(pattern) == len(best) && pattern < best
		if matches(pattern, name) && longer {
			best = pattern
		}
	}
	if best == "" {
		return c.XDP
	}
	return c.PortXDP[best]
}

// keyError is what a key says that does not agree with other keys.
type keyError struct{ key, what string }

func (e *keyError) Error() string { return e.what }

// Check says what a configuration lacks when file and flags are taken together.
func (c Config) Check() error {
	if len(c.Ports) == 0 {
		return &keyError{"port", `no port: name one with --port eth0, or with port = ["eth0"] in ` + DefaultFile + ` or the file given by --config`}
	}
	for _, name := range slices.Sorted(maps.Keys(c.PortXDP)) {
		if !isPattern(name) && !c.Wants(name) {
			return &keyError{"ports." + name, fmt.Sprintf("[ports.%q] is about no port: add %q to port, or take the table out", name, name)}
		}
	}
	return c.checkSource()
}
