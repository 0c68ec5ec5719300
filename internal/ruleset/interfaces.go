// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"slices"
	"strconv"
	"strings"
)

// Interfaces are names of which one must be an interface's: "" is any. They are kept in
// one string, so that a Match can be compared: no name has a slash or a blank.
type Interfaces string

// Named makes Interfaces of names, of which a trailing * stands for the rest, and of
// indexes.
func Named(names []string, indexes ...int) Interfaces {
	for _, i := range indexes {
		names = append(names, "/"+strconv.Itoa(i))
	}
	return Interfaces(strings.Join(names, " "))
}

// Has reports whether an interface is among them.
func (i Interfaces) Has(name string, index int) bool {
	return i == "" || i.lists(name, index)
}

func (i Interfaces) lists(name string, index int) bool {
	for want := range strings.FieldsSeq(string(i)) {
		if want == "/"+strconv.Itoa(index) || fitsName(want, name) {
			return true
		}
	}
	return false
}

// fitsName reports whether a name, or all that another pattern stands for, fits a pattern.
func fitsName(pattern, name string) bool {
	prefix, wild := strings.CutSuffix(pattern, "*")
	return pattern == name || wild && !strings.HasPrefix(name, "/") && strings.HasPrefix(name, prefix)
}

// covers reports whether everything that o lists is listed here, too.
func (i Interfaces) covers(o Interfaces) bool {
	for name := range strings.FieldsSeq(string(o)) {
		if !slices.ContainsFunc(strings.Fields(string(i)), func(p string) bool { return fitsName(p, name) }) {
			return false
		}
	}
	return true
}

// loopback reports whether only lo is listed, whose index is 1 in every network namespace: it is
// never a port, and what it sends is not forwarded.
func (i Interfaces) loopback() bool { return i == "lo" || i == "/1" }

// comparable reports whether two lists speak of the same: an index and a name may be those of
// one interface.
func (i Interfaces) comparable(o Interfaces) bool {
	indexes := func(l Interfaces) int { return strings.Count(string(l), "/") }
	all := len(strings.Fields(string(i))) + len(strings.Fields(string(o)))
	n := indexes(i) + indexes(o)
	return n == 0 || n == all
}

// plain reports whether each entry is one interface.
func (i Interfaces) plain() bool { return !strings.Contains(string(i), "*") }

// pick returns the entries that fit.
func (i Interfaces) pick(fits func(Interfaces) bool) (some []string) {
	for name := range strings.FieldsSeq(string(i)) {
		if fits(Interfaces(name)) {
			some = append(some, name)
		}
	}
	return some
}

// union lists what either lists.
func (i Interfaces) union(o Interfaces) Interfaces {
	all := append(strings.Fields(string(i)), strings.Fields(string(o))...)
	slices.Sort(all)
	return Named(slices.Compact(all))
}

// narrowInterfaces narrows a list and an exclusion by others; false: no interface fits.
func narrowInterfaces(in, not *Interfaces, otherIn, otherNot Interfaces) bool {
	switch {
	case *in == "":
		*in = otherIn
	case otherIn != "" && in.comparable(otherIn):
		a := in.pick(func(n Interfaces) bool { return otherIn.covers(n) })
		b := otherIn.pick(func(n Interfaces) bool { return in.covers(n) })
		if len(a)+len(b) == 0 {
			return false
		}
		*in = Named(a).union(Named(b))
	}
	if otherNot != "" {
		*not = not.union(otherNot)
	}
	if *in != "" && *not != "" && in.comparable(*not) {
		excluded := *not
		left := in.pick(func(n Interfaces) bool { return !excluded.covers(n) })
		if len(left) == 0 {
			return false
		}
		if *in = Named(left); in.plain() {
			*not = ""
		}
	}
	return true
}

// coversInterfaces reports whether a list admits all that another one admits.
func coversInterfaces(in, other Interfaces) bool {
	return in == "" || other != "" && in.covers(other)
}

// within reports whether what is excluded here is excluded there, or not listed there.
func (i Interfaces) within(not, in Interfaces) bool {
	return not.covers(i) || in != "" && in.plain() && i.comparable(in) &&
		len(in.pick(func(n Interfaces) bool { return i.covers(n) })) == 0
}

// String lists the interfaces.
func (i Interfaces) String() string {
	var words []string
	for name := range strings.FieldsSeq(string(i)) {
		if index, ok := strings.CutPrefix(name, "/"); ok {
			name = "interface " + index
		}
		words = append(words, name)
	}
	return strings.Join(words, " or ")
}
