// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// show prints an answer: as JSON exactly as the API gave it, or as text composes it.
func (e *env) show(answer any, text func(*page)) error {
	if e.json {
		enc := json.NewEncoder(e.out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(answer)
	}
	p := &page{colour: e.colour()}
	text(p)
	_, err := e.out.Write([]byte(p.String()))
	return err
}

// colour tells whether the reader sees colours and wants them (no-color.org).
func (e *env) colour() bool {
	return isTerminal(e.out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// style is how a word looks, as the parameter of ANSI's "select graphic rendition".
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// cell is one styled word or number of a table.
type cell struct {
	text  string
	style style
}

// page is text for people, under way.
type page struct {
	strings.Builder
	colour bool
}

func (p *page) paint(s string, st style) string {
	if !p.colour || st == plain || s == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

func (p *page) line(format string, args ...any) {
	p.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// table is rows of cells in columns as wide as they need to be.
type table struct {
	heads []string // those of right-aligned columns begin with ">"
	rows  [][]cell
}

func newTable(heads ...string) *table { return &table{heads: heads} }

// add appends a row; its cells are strings or cells.
func (t *table) add(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case cell:
			row[i] = cell{clean(c.text), c.style}
		case string:
			row[i] = cell{clean(c), plain}
		}
	}
	t.rows = append(t.rows, row)
}

// clean takes out what a terminal would obey: an interface's name may hold any byte.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// table prints t; without any head it has no head line.
func (p *page) table(t *table) {
	width := make([]int, len(t.heads))
	right := make([]bool, len(t.heads))
	head := make([]cell, len(t.heads))
	for i, h := range t.heads {
		h, right[i] = strings.CutPrefix(h, ">")
		head[i], width[i] = cell{h, bold}, utf8.RuneCountInString(h)
	}
	for _, row := range t.rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c.text))
		}
	}
	if strings.Join(t.heads, "") != "" {
		p.row(head, width, right)
	}
	for _, row := range t.rows {
		p.row(row, width, right)
	}
}

func (p *page) row(row []cell, width []int, right []bool) {
	line := ""
	for i, c := range row {
		gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text))
		text := p.paint(c.text, c.style)
		if right[i] {
			line += gap + text
		} else if line += text; i < len(row)-1 {
			line += gap
		}
		if i < len(row)-1 {
			line += "  "
		}
	}
	p.line("%s", line)
}

// count writes a number with its thousands apart: 1,234,567.
func count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// si writes a quantity with three digits and a decimal prefix: 2.81 M, 640.
func si(n float64) string {
	prefixes := []string{"", " k", " M", " G", " T", " P", " E"}
	i := 0
	for n >= 999.5 && i < len(prefixes)-1 {
		n /= 1000
		i++
	}
	digits := 0
	switch {
	case i == 0 || n >= 99.95:
	case n >= 9.995:
		digits = 1
	default:
		digits = 2
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + prefixes[i]
}

// octets writes a number of bytes: "640 B", "1.23 MB".
func octets(n float64) string {
	s := si(n)
	if !strings.Contains(s, " ") {
		s += " "
	}
	return s + "B"
}

// span writes a duration in seconds by its two largest units: 3.2s, 5m12s, 2d3h.
func span(seconds float64) string {
	if seconds < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(seconds, 'f', 1, 64), ".0") + "s"
	}
	s := int64(time.Duration(seconds*float64(time.Second)).Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s/3600%24)
}

// share writes a part of a whole: "98.2 %".
func share(part, whole uint64) string {
	if whole == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64) + " %"
}
