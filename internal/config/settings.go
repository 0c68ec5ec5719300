// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Setting is one value of a configuration, written as in the file.
type Setting struct {
	Key, Value, Default string
	From                string // "FILE:LINE", a flag, or "default"
}

// Settings lists every value in the order of reference.toml. A list of tables is one Setting
// for each of them, or one with the value [] without any.
func (e *Effective) Settings() []Setting {
	preset := Default()
	preset.Flows = e.Config.Flows // of which source_flows is a share
	values, defaults := e.values(), preset.values()
	defaults["flows"] = strconv.Itoa(Default().Flows)
	var all []Setting
	for _, key := range scalars {
		all = append(all, Setting{key, values[key], defaults[key], e.origin(key)})
	}
	all = append(all, e.rules("exclude", e.Exclude)...)
	all = append(all, e.rules("include", e.Include)...)
	all = append(all, table(e, "police", e.Police, func(r Rate) string { return strconv.Quote(fmt.Sprintf("%d/s", r)) })...)
	ports := map[string]Mode{}
	for name, mode := range e.PortXDP {
		ports[name+".xdp"] = mode
	}
	return append(all, table(e, "ports", ports, func(m Mode) string { return strconv.Quote(string(m)) })...)
}

// scalars are the keys of single values, as in reference.toml.
var scalars = []string{"port", "xdp", "offloads", "tcp", "threshold", "lease", "flows", "source_flows", "verify", "labels", "label_hold",
	"policy", "mark.value", "mark.mask", "metrics.listen"}

func (c Config) values() map[string]string {
	tcp := "off"
	if c.TCP {
		tcp = "on"
	}
	ports := make([]string, len(c.Ports))
	for i, name := range c.Ports {
		ports[i] = strconv.Quote(name)
	}
	return map[string]string{
		"port": "[" + strings.Join(ports, ", ") + "]", "xdp": strconv.Quote(string(c.XDP)), "offloads": strconv.Quote(string(c.Offloads)), "tcp": strconv.Quote(tcp),
		"threshold": fmt.Sprint(c.Threshold), "lease": strconv.Quote(c.Lease.String()), "flows": fmt.Sprint(c.Flows),
		"source_flows": fmt.Sprint(c.SourceLimit()), "verify": fmt.Sprint(c.Verify), "labels": fmt.Sprint(c.Labels),
		"label_hold": strconv.Quote(c.LabelHold.String()), "policy": strconv.Quote(string(c.Policy)),
		"mark.value": fmt.Sprintf("%#x", c.Mark.Value), "mark.mask": fmt.Sprintf("%#x", c.Mark.Mask),
		"metrics.listen": strconv.Quote(c.MetricsListen),
	}
}

// rules lists [[exclude]] or [[include]].
func (e *Effective) rules(list string, rules []Flows) []Setting {
	if len(rules) == 0 {
		return []Setting{{list, "[]", "[]", "default"}}
	}
	var all []Setting
	for _, k := range e.keys {
		if k.array && k.path[0] == list {
			all = append(all, Setting{list, rules[len(all)].String(), "[]", fmt.Sprintf("%s:%d", e.Read, k.line)})
		}
	}
	return all
}

// table lists the keys of a table whose default is to be empty.
func table[V any](e *Effective, name string, values map[string]V, text func(V) string) []Setting {
	if len(values) == 0 {
		return []Setting{{name, "{}", "{}", "default"}}
	}
	var all []Setting
	for _, key := range slices.Sorted(maps.Keys(values)) {
		all = append(all, Setting{name + "." + key, text(values[key]), "", e.origin(name + "." + key)})
	}
	return all
}

// Changed lists the keys whose values differ, in the order of reference.toml.
func Changed(old, next *Effective) (keys []string) {
	values := func(e *Effective) (order []string, byKey map[string]string) {
		byKey = map[string]string{}
		for _, s := range e.Settings() {
			if s.Value == "{}" { // its keys are listed one by one
				continue
			}
			if _, ok := byKey[s.Key]; !ok {
				order = append(order, s.Key)
			}
			byKey[s.Key] += s.Value + "\n"
		}
		return order, byKey
	}
	before, had := values(old)
	after, has := values(next)
	for _, key := range slices.Concat(before, after) {
		if had[key] != has[key] && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// String is the rule as an inline table.
func (f Flows) String() string {
	var parts []string
	add := func(key, value string) {
		if value != "" {
			parts = append(parts, key+" = "+strconv.Quote(value))
		}
	}
	for _, p := range []struct {
		key    string
		prefix interface {
			IsValid() bool
			String() string
		}
	}{{"from", f.From}, {"to", f.To}} {
		if p.prefix.IsValid() {
			add(p.key, p.prefix.String())
		}
	}
	if f.Proto != 0 {
		add("proto", protoWord(f.Proto))
	}
	if f.Port != [2]uint16{} {
		word := fmt.Sprint(f.Port[0])
		if f.Port[1] != f.Port[0] {
			word += fmt.Sprintf("-%d", f.Port[1])
		}
		add("port", word)
	}
	add("in", f.In)
	add("out", f.Out)
	return "{" + strings.Join(parts, ", ") + "}"
}

func protoWord(number uint8) string {
	for word, n := range protocols {
		if n == number {
			return word
		}
	}
	return fmt.Sprint(number)
}
