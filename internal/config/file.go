// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Reference is the documented configuration file with every key at its default.
//
//go:embed reference.toml
var Reference string

// Error is something wrong with what a configuration file says (not with reading it).
type Error struct {
	File string
	Line int    // from 1; 0: what it lacks is on no line
	What string // what is wrong and what is allowed
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.What)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What)
}

// raw is the file as it is typed. Numbers and words become values in Config.Set alone.
type raw struct {
	Port      []string   `toml:"port"`
	XDP       *string    `toml:"xdp"`
	Offloads  *string    `toml:"offloads"`
	TCP       *string    `toml:"tcp"`
	Threshold *int64     `toml:"threshold"`
	Lease     *string    `toml:"lease"`
	Flows     *int64     `toml:"flows"`
	Verify    *int64     `toml:"verify"`
	Policy    *string    `toml:"policy"`
	Mark      rawMark    `toml:"mark"`
	Exclude   []rawFlows `toml:"exclude"`
	Include   []rawFlows `toml:"include"`
	Ports     map[string]struct {
		XDP *string `toml:"xdp"`
	} `toml:"ports"`
	SourceFlows *int64            `toml:"source_flows"`
	Police      map[string]string `toml:"police"`
	Labels      *int64            `toml:"labels"`
	LabelHold   *string           `toml:"label_hold"`
	Metrics     rawMetrics        `toml:"metrics"`
}

// Parse checks the text of a configuration file; the name is for errors only. The error
// is an *Error.
func Parse(name string, data []byte) (Config, error) {
	cfg, _, err := parse(name, data)
	return cfg, err
}

// parse is Parse, and gives the place of every key.
func parse(name string, data []byte) (Config, []entry, error) {
	f := file{name: name, data: data}
	var r raw
	if err := toml.Unmarshal(data, &r); err != nil {
		return Config{}, nil, f.decodeError(err)
	}
	if err := f.index(); err != nil {
		return Config{}, nil, err
	}
	cfg := Default()
	err := f.apply(&cfg, &r)
	return cfg, f.entries, err
}

// apply gives cfg the values of the file, in the order of raw.
func (f *file) apply(cfg *Config, r *raw) error {
	type pair struct{ key, value string }
	var pairs []pair
	for _, port := range r.Port {
		pairs = append(pairs, pair{"port", port})
	}
	for key, s := range map[string]*string{"xdp": r.XDP, "offloads": r.Offloads, "tcp": r.TCP, "lease": r.Lease, "policy": r.Policy, "label_hold": r.LabelHold} {
		if s != nil {
			pairs = append(pairs, pair{key, *s})
		}
	}
	for key, n := range map[string]*int64{"threshold": r.Threshold, "flows": r.Flows, "verify": r.Verify, "source_flows": r.SourceFlows, "labels": r.Labels} {
		if n != nil {
			pairs = append(pairs, pair{key, strconv.FormatInt(*n, 10)})
		}
	}
	// The first wrong line is told, whatever the order of the maps above.
	slices.SortStableFunc(pairs, func(a, b pair) int { return f.line(a.key) - f.line(b.key) })
	for _, p := range pairs {
		if cfg.Set(p.key, p.value) != nil {
			return f.valueError(f.line(p.key), p.key, p.value)
		}
	}
	return cmp.Or(f.applyPorts(cfg, r), f.applyMark(cfg, &r.Mark),
		f.applyFlows("exclude", r.Exclude, &cfg.Exclude), f.applyFlows("include", r.Include, &cfg.Include),
		f.countFlows(cfg), f.applyPolice(cfg, r), f.applyMetrics(cfg, &r.Metrics))
}

// applyPorts gives cfg the tables of single ports, in the order of the file.
func (f *file) applyPorts(cfg *Config, r *raw) error {
	for _, e := range f.entries {
		switch e.pattern() {
		case "ports.*":
			if name := e.path[1]; !validName(name) {
				return f.errorf(e.line, "ports.%q: allowed is the name of an interface, or a wildcard for some", name)
			}
		case "ports.*.xdp":
			var mode Mode
			if value := r.Ports[e.path[1]].XDP; value == nil || !setMode(&mode, *value) {
				return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed[e.pattern()])
			}
			cfg.PortXDP[e.path[1]] = mode
		}
	}
	return nil
}

// file is a text on its way through Parse, with the place of every key.
type file struct {
	name    string
	data    []byte
	entries []entry
}

// entry is one key, or table, with its line.
type entry struct {
	path  []string
	line  int
	array bool // [[path]]
}

// key is the entry's name as written with dots.
func (e entry) key() string { return strings.Join(e.path, ".") }

// pattern is the entry's place among the allowed keys.
func (e entry) pattern() string {
	parts := slices.Clone(e.path)
	if len(parts) > 1 && (parts[0] == "ports" || parts[0] == "police") {
		parts[1] = "*"
	}
	return strings.Join(parts, ".")
}

// index finds the line of every key, and the first key that is not allowed. The decoder's
// own strict mode is not enough: it takes "XDP" for "xdp".
func (f *file) index() error {
	var p unstable.Parser
	p.Reset(f.data)
	var table []string
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = f.addKey(&p, nil, e)
			f.entries[len(f.entries)-1].array = e.Kind == unstable.ArrayTable
		case unstable.KeyValue:
			f.addPair(&p, table, e)
		}
	}
	for _, e := range f.entries {
		if _, ok := allowed[e.pattern()]; !ok {
			return f.unknown(e)
		}
	}
	return nil
}

func (f *file) addKey(p *unstable.Parser, table []string, node *unstable.Node) []string {
	path, line := slices.Clone(table), 0
	for it := node.Key(); it.Next(); {
		path = append(path, string(it.Node().Data))
		line = p.Shape(it.Node().Raw).Start.Line
		f.entries = append(f.entries, entry{path: slices.Clone(path), line: line})
	}
	return path
}

func (f *file) addPair(p *unstable.Parser, table []string, node *unstable.Node) {
	path := f.addKey(p, table, node)
	if value := node.Value(); value.Kind == unstable.InlineTable {
		for it := value.Children(); it.Next(); {
			f.addPair(p, path, it.Node())
		}
	}
}

// line is that of a top-level key.
func (f *file) line(key string) int {
	for _, e := range f.entries {
		if e.pattern() == key {
			return e.line
		}
	}
	return 1
}

func (f *file) errorf(line int, format string, args ...any) error {
	return &Error{f.name, line, fmt.Sprintf(format, args...)}
}

// valueError quotes the line if the value stands there (it need not: lists and dotted
// keys), and says what the key takes.
func (f *file) valueError(line int, key, value string) error {
	text := f.text(line)
	if !strings.Contains(text, value) {
		text = fmt.Sprintf("%s: %q", key, value)
	}
	return f.errorf(line, "%s: allowed %s", text, allowed[key])
}

// unknown names the keys that are allowed in the place of one that is not, nearest first.
func (f *file) unknown(e entry) error {
	prefix := ""
	if table, _, ok := strings.Cut(e.pattern(), "."); ok {
		prefix = table + "."
		if table == "ports" {
			prefix = "ports.*."
		}
	}
	word := e.path[strings.Count(prefix, ".")]
	var keys []string
	for key := range allowed {
		if rest, ok := strings.CutPrefix(key, prefix); ok && !strings.Contains(rest, ".") {
			keys = append(keys, rest)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		if d := distance(word, a) - distance(word, b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return f.errorf(e.line, "unknown key %q: allowed are %s", strings.Join(e.path, "."), strings.Join(keys, ", "))
}

// decodeError says in our words what the decoder found: a wrong type, or wrong TOML.
func (f *file) decodeError(err error) error {
	var de *toml.DecodeError
	if !errors.As(err, &de) {
		return f.errorf(1, "%s", oneLine(err.Error()))
	}
	line, _ := de.Position()
	what := strings.TrimPrefix(de.Error(), "toml: ")
	e := entry{path: de.Key()}
	if rule, ok := allowed[e.pattern()]; ok && !strings.Contains(what, "already defined") {
		return f.errorf(line, "%s: allowed %s", f.text(line), rule)
	}
	return f.errorf(line, "%s: %s", f.text(line), oneLine(what))
}

// text is a line of the file without its comment, cut to what an error can carry.
func (f *file) text(line int) string {
	lines := strings.Split(string(f.data), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	text, _, _ := strings.Cut(lines[line-1], " #")
	if runes := []rune(text); len(runes) > 60 {
		text = string(runes[:60]) + "..."
	}
	return strings.TrimSpace(oneLine(text))
}

// oneLine takes control characters, which would break an error's line, out of a text.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// distance is Levenshtein's: how many letters to add, drop or replace between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
