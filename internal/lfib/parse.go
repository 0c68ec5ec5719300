// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unique"
)

// verbsOf are the verbs of each noun, as an error lists them.
var verbsOf = map[string][]Verb{
	"ilm": {Add, Alter, Replace, Delete}, "nhlfe": {Add, Alter, Replace, Delete},
	"ftn": {Add, Replace, Delete}, "map": {Add, Replace, Delete}, "space": {Set},
	"route": {Add, Alter, Replace, Delete},
}

// Parse reads one line of the grammar, without "shunt mpls" in front of it. Most lines are one
// change; "route" makes an NHLFE and an ILM entry, "space set" one change per port, an
// empty line none. What a word that begins with # begins is a comment. What is read fits
// together as far as that can be told without the tables. The error is one line that
// names the word and the fix.
func Parse(line string) ([]Change, error) { return ParseTo(nil, line) }

// ParseTo is Parse that adds the changes to others. After an error these are as they were.
func ParseTo(changes []Change, line string) ([]Change, error) {
	var room [16]string // most lines have no more words
	words, plain := split(room[:0], line)
	r := reader{words: words}
	if i := slices.IndexFunc(r.words, func(w string) bool { return w[0] == '#' }); i >= 0 {
		r.words = r.words[:i]
	}
	if len(r.words) == 0 {
		return changes, nil
	}
	if !plain {
		if i := strings.IndexFunc(line, func(c rune) bool { return !unicode.IsPrint(c) && !unicode.IsSpace(c) }); i >= 0 {
			return changes, fmt.Errorf("byte %d of the line is none of a text: write words", i+1)
		}
	}
	all := r.line(changes)
	if r.err == nil && r.at < len(r.words) {
		r.fail("%q is left over behind %q: leave it away", r.words[r.at], r.words[r.at-1])
	}
	for i := len(changes); i < len(all) && r.err == nil; i++ {
		r.err = check(all[i])
	}
	if r.err != nil {
		return changes, fmt.Errorf("%s: %w", brief(strings.Join(r.words, " ")), r.err)
	}
	return all, nil
}

// split is strings.Fields into words, and tells whether a line is plain: of ASCII, to be read. A load
// is millions of such lines.
func split(words []string, line string) (_ []string, plain bool) {
	for i := 0; i < len(line); {
		begin := i
		for i < len(line) && line[i] > ' ' && line[i] < 0x7f {
			i++
		}
		if i > begin {
			words = append(words, line[begin:i])
		}
		if i < len(line) && line[i] != ' ' && line[i] != '\t' {
			return strings.Fields(line), false
		}
		i++
	}
	return words, true
}

// brief is a line as an error shows it.
func brief(line string) string {
	const most = 100
	if len(line) <= most {
		return line
	}
	return strings.ToValidUTF8(line[:most], "") + "..."
}

// reader reads words, one after the other. The first thing that is wrong stays as its error;
// whatever is read after that counts for nothing.
type reader struct {
	words []string
	at    int
	err   error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// next is the word that will be read next, "" at the end.
func (r *reader) next() string {
	if r.err != nil || r.at == len(r.words) {
		return ""
	}
	return r.words[r.at]
}

// word reads a word; what says in an error which.
func (r *reader) word(what string) string {
	w := r.next()
	if w == "" {
		r.fail("the line ends where %s is wanted: write it", what)
		return ""
	}
	r.at++
	return w
}

// name reads a word that is kept, apart from the line and shared with others that are equal.
func (r *reader) name(what string) string { return unique.Make(r.word(what)).Value() }

// accept reads the next word if it is this one.
func (r *reader) accept(word string) bool {
	if r.next() != word {
		return false
	}
	r.at++
	return true
}

func (r *reader) expect(word string) {
	if r.accept(word) {
		return
	}
	if w := r.word(strconv.Quote(word)); w != word {
		r.fail("%q where %q is wanted: write that", w, word)
	}
}

// oneOf reads one of some words, and gives its index.
func (r *reader) oneOf(what string, words []string) int {
	w := r.word(what)
	i := slices.Index(words, w)
	if i < 0 {
		r.fail("%q is no %s: use %s", w, what, strings.Join(words, ", "))
		return 0
	}
	return i
}

func (r *reader) number(what string, low, high uint64) uint64 {
	return r.parse(what, r.word(what), low, high)
}

// parse reads a number that is a part of a word.
func (r *reader) parse(what, text string, low, high uint64) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < low || n > high {
		r.fail("%s %q: use a number from %d to %d", what, text, low, high)
		return 0
	}
	return n
}

func (r *reader) label() Label { return Label(r.number("label", 0, uint64(MaxLabel))) }
func (r *reader) space() Space { return Space(r.number("space", 0, uint64(MaxSpace))) }
func (r *reader) id() uint32   { return r.parseID(r.word("the ID of an NHLFE")) }

func (r *reader) parseID(text string) uint32 { return uint32(r.parse("nhlfe", text, 1, 1<<32-1)) }

func (r *reader) small(what string, low, high uint64) *uint8 {
	n := uint8(r.number(what, low, high))
	return &n
}

var nouns = []string{"ilm", "nhlfe", "ftn", "map", "space", "route"}

// line reads a line, and adds its changes.
func (r *reader) line(all []Change) []Change {
	noun := nouns[r.oneOf("noun", nouns)]
	verb := r.verb(noun)
	switch noun {
	case "ilm":
		return append(all, Change{verb, r.ilm(verb)})
	case "nhlfe":
		return append(all, Change{verb, r.nhlfe(verb)})
	case "ftn":
		return append(all, Change{verb, r.ftn(verb)})
	case "map":
		return append(all, Change{verb, r.mapping(verb)})
	case "space":
		return append(all, r.spaces()...)
	}
	return append(all, r.route(verb)...)
}

func (r *reader) verb(noun string) Verb {
	var words []string
	for _, v := range verbsOf[noun] {
		if r.accept(v.String()) {
			return v
		}
		words = append(words, v.String())
	}
	r.oneOf("verb of "+noun, words)
	return verbsOf[noun][0]
}

func (r *reader) ilm(verb Verb) ILM {
	o := ILM{Label: r.label(), TC: -1}
	if r.accept("space") {
		o.Space = r.space()
	}
	if r.accept("tc") {
		o.TC = int(r.number("tc", 0, 7))
	}
	if verb != Delete {
		r.expect("nhlfe")
		o.NHLFE = r.id()
	}
	return o
}

func (r *reader) nhlfe(verb Verb) NHLFE {
	o := NHLFE{ID: r.id()}
	if verb == Delete {
		return o
	}
	if r.accept("mtu") {
		o.MTU = int(r.number("mtu", MinMTU, MaxMTU))
	}
	if r.accept("ttl") {
		o.Model = Model(r.oneOf("ttl model", modelWords))
	}
	var room [8]Instruction // so that most lists are allocated once, in their size
	list := room[:0]
	for r.next() != "" {
		list = append(list, r.instruction())
	}
	o.List = make([]Instruction, len(list))
	copy(o.List, list)
	return o
}

func (r *reader) ftn(verb Verb) FTN {
	o := FTN{Prefix: r.prefix()}
	if verb != Delete {
		r.expect("nhlfe")
		o.NHLFE = r.id()
	}
	return o
}

// prefix reads a prefix; an address alone is one of full length.
func (r *reader) prefix() netip.Prefix {
	w := r.word("a prefix")
	p, err := netip.ParsePrefix(w)
	if err == nil {
		return p
	}
	a, err := netip.ParseAddr(w)
	if err != nil || a.Zone() != "" {
		r.fail("%q is no prefix: write ADDRESS/LENGTH", w)
		return p
	}
	return netip.PrefixFrom(a, a.BitLen())
}

func (r *reader) mapping(verb Verb) Map {
	o := Map{Name: r.name("the name of a map")}
	if verb == Delete {
		return o
	}
	o.Kind = MapKind(r.oneOf("kind of map", kindWords))
	o.To = map[int]int{}
	for r.next() != "" {
		key, value := r.pair(":", "K:V", "key of the map", o.Kind.keys())
		to := int(r.parse("value of the map", value, 0, uint64(o.Kind.values()-1)))
		if _, twice := o.To[key]; twice {
			r.fail("the map names %d twice: leave one away", key)
		}
		o.To[key] = to
	}
	return o
}

// pair reads two things in one word, of which the first is a number below keys.
func (r *reader) pair(between, form, what string, keys int) (key int, value string) {
	w := r.word(form)
	first, value, ok := strings.Cut(w, between)
	if !ok {
		r.fail("%q: write %s", w, form)
	}
	return int(r.parse(what, first, 0, uint64(keys-1))), value
}

// spaces reads PORT... {S [upstream U]|off}. A port may have any of these words for a name, so it
// counts where a word stands.
func (r *reader) spaces() (changes []Change) {
	last := len(r.words) - 1
	upstream := last-r.at >= 3 && r.words[last-1] == "upstream"
	if upstream {
		last -= 2
	}
	ports := []string{r.name("a port")}
	for r.at < last && r.err == nil {
		ports = append(ports, r.name("a port"))
	}
	o := PortSpace{Space: -1, Upstream: -1}
	if !r.accept("off") {
		o.Space = int(r.space())
		if upstream && r.accept("upstream") {
			o.Upstream = int(r.space())
		}
	}
	for _, o.Port = range ports {
		changes = append(changes, Change{Set, o})
	}
	return changes
}

// send reads the way out: PORT {via [inet|inet6] ADDR | lladdr MAC}, behind "dev".
func (r *reader) send() (s Send) {
	s.Port = r.name("a port")
	switch {
	case r.accept("via"):
		s.Via = r.via()
	case r.accept("lladdr"):
		s.MAC = r.mac()
	default:
		r.fail("dev %s names no next hop: write \"via inet ADDR\", \"via inet6 ADDR\" or \"lladdr MAC\" behind it", s.Port)
	}
	return s
}

func (r *reader) via() netip.Addr {
	family := ""
	if w := r.next(); w == "inet" || w == "inet6" {
		family = r.word("a family")
	}
	w := r.word("the address of the next hop")
	a, err := netip.ParseAddr(w)
	switch {
	case err != nil || a.Zone() != "":
		r.fail("%q is no address of a next hop: write one such as 192.0.2.1 or fe80::1", w)
	case family == "inet" && !a.Is4(), family == "inet6" && a.Is4():
		r.fail("%s is no address of %s: use the other family", a, family)
	}
	return a
}

func (r *reader) mac() net.HardwareAddr {
	w := r.word("a MAC address")
	mac, err := net.ParseMAC(w)
	if err != nil || len(mac) != 6 {
		r.fail("%q is no MAC address: write one such as 02:00:00:00:00:01", w)
		return nil
	}
	return mac
}

const endings = "send, peek, forward, by-tc, by-dscp, by-hash, deliver or drop"

var errNoInstruction = errors.New("the list has no instruction: end it in " + endings)
