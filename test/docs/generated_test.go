// SPDX-License-Identifier: Apache-2.0

// Package docs keeps the pages true: what can be made from the sources is made from them,
// every command is run or held against the program's own help, every link and every named
// function is looked up.
//
//	go test ./test/docs -update
//
// writes the generated parts anew. Running commands needs root, as all labs do.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/config"
	"shunt/internal/reason"
)

var update = flag.Bool("update", false, "write the generated parts of the pages anew")

const top = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are all Markdown files, relative to the tree's top.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			rel, _ := filepath.Rel(top, f)
			found = append(found, rel)
		}
	}
	if len(found) < 10 {
		t.Fatalf("only %d pages found", len(found))
	}
	return found
}

// hold compares a page with what it should be, or makes it so.
func hold(t *testing.T, page, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join(top, page), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, _ := os.ReadFile(filepath.Join(top, page))
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is stale; run \"go test ./test/docs -update\" and read the difference (- is right):\n%s", page, diff)
	}
}

// section replaces what stands between "<!-- generated: name -->" and "<!-- end -->".
func section(t *testing.T, page, name, body string) string {
	t.Helper()
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(read(t, page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no generated section %q", page, name)
	}
	return before + begin + body + end + after
}

func TestConfigPage(t *testing.T) {
	hold(t, "docs/config.md", section(t, "docs/config.md", "reference", "```toml\n"+config.Reference+"```\n"))
}

// group is a heading of enum reason with the reasons below it.
type group struct {
	title string
	names []string
}

// groups reads enum reason of bpf/abi.h: comments on lines of their own are headings.
func groups(t *testing.T) []group {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, "bpf/abi.h"), "enum reason {")
	body, _, ok := strings.Cut(rest, "};")
	if !ok {
		t.Fatal("bpf/abi.h has no enum reason")
	}
	heading := regexp.MustCompile(`^\s*/\*\s*(.*?)\s*\*/$`)
	name := regexp.MustCompile(`^\s*REASON_(\w+)`)
	found := []group{{title: "the packet is repeated"}}
	for _, line := range strings.Split(body, "\n") {
		last := &found[len(found)-1]
		if m := heading.FindStringSubmatch(line); m != nil {
			found = append(found, group{title: m[1]})
		} else if m := name.FindStringSubmatch(line); m != nil {
			last.names = append(last.names, strings.ToLower(m[1]))
		}
	}
	return found
}

func TestReasonsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Reasons

Every packet leaves the programs by one of these words. They are counted under these names at each stage (` + "`shunt status`" + `),
kept for each flow, and told by ` + "`shunt explain`" + `. Made from ` + "`bpf/abi.h` and `internal/reason`" + `; a test fails when this page is stale.
The rules are those of [ARCHITECTURE.md](../ARCHITECTURE.md).
`)
	for _, g := range groups(t) {
		title := strings.ToUpper(g.title[:1]) + g.title[1:]
		fmt.Fprintf(&b, "\n## %s\n\n| reason | meaning | why | what to do |\n|---|---|---|---|\n", title)
		for _, name := range g.names {
			words, rule, remedy := reason.Words(name)
			if words == "" {
				t.Errorf("%s of bpf/abi.h has no words in internal/reason", name)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, cell(words), cell(rule), cell(remedy))
		}
	}
	hold(t, "docs/reasons.md", b.String())
}

// cell makes a text fit into a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// shapes says in JSON's words what a Go type becomes.
var shapes = map[string]string{
	"string": "text", "bool": "true or false", "int": "number", "uint8": "number", "uint32": "number", "uint64": "number",
	"float64": "number", "time.Time": "time", "netip.AddrPort": "address:port",
	"map[string]uint64": "object of numbers", "map[string]map[string]uint64": "object of objects of numbers",
	"map[string]int": "object of numbers", "netip.Prefix": "address/length",
}

func TestFieldsOfTheAPI(t *testing.T) {
	var b strings.Builder
	written := 0
	for _, name := range []string{"types.go", "mpls.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, read(t, "internal/api/"+name), parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		written += typesOf(t, &b, file)
	}
	if written < 5 {
		t.Fatalf("only %d types found", written)
	}
	hold(t, "docs/api.md", section(t, "docs/api.md", "fields", b.String()))
}

// typesOf writes the types and the words of a file, and returns how many types there were.
func typesOf(t *testing.T, b *strings.Builder, file *ast.File) (written int) {
	word := constantWords(file)
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			if ts, ok := spec.(*ast.TypeSpec); ok {
				if st, ok := ts.Type.(*ast.StructType); ok && tagged(st) {
					fields(t, b, d.Doc.Text(), ts.Name.Name, st, word)
					written++
				}
			}
		}
		if d.Tok == token.CONST {
			constants(b, d)
		}
	}
	return written
}

func tagged(st *ast.StructType) bool {
	return len(st.Fields.List) > 0 && st.Fields.List[0].Tag != nil
}

// constantWords replaces the Go names of words by the words.
func constantWords(file *ast.File) *strings.Replacer {
	var pairs []string
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			vs := spec.(*ast.ValueSpec)
			if value, ok := vs.Values[0].(*ast.BasicLit); ok {
				pairs = append(pairs, vs.Names[0].Name, "`"+strings.Trim(value.Value, `"`)+"`")
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// constants lists the words that a field may have.
func constants(b *strings.Builder, d *ast.GenDecl) {
	var words []string
	for _, spec := range d.Specs {
		vs := spec.(*ast.ValueSpec)
		value, ok := vs.Values[0].(*ast.BasicLit)
		if !ok {
			return
		}
		word := "`" + strings.Trim(value.Value, `"`) + "`"
		if c := strings.TrimSpace(vs.Comment.Text()); c != "" {
			word += " (" + c + ")"
		}
		words = append(words, word)
	}
	fmt.Fprintf(b, "%s %s.\n\n", strings.TrimSuffix(oneLine(d.Doc.Text()), ".")+":", strings.Join(words, ", "))
}

func fields(t *testing.T, b *strings.Builder, doc, name string, st *ast.StructType, word *strings.Replacer) {
	fmt.Fprintf(b, "### %s\n\n%s\n\n| field | is | |\n|---|---|---|\n", name, oneLine(doc))
	for _, f := range st.Fields.List {
		jsonName, option, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		shape := types(f.Type)
		comment := word.Replace(strings.TrimSpace(f.Comment.Text()))
		if option == "omitempty" || option == "omitzero" {
			shape += ", optional"
		}
		if jsonName == "" {
			t.Errorf("%s.%s has no JSON name", name, f.Names[0].Name)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", jsonName, shape, cell(comment))
	}
	b.WriteString("\n")
}

// types writes a field's type for people who know JSON and not Go.
func types(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return types(e.X)
	case *ast.SelectorExpr:
		return shapes[e.X.(*ast.Ident).Name+"."+e.Sel.Name]
	case *ast.MapType:
		return shapes["map[string]"+mapValue(e.Value)]
	case *ast.ArrayType:
		return "list of " + types(e.Elt)
	case *ast.Ident:
		if shape, ok := shapes[e.Name]; ok {
			return shape
		}
		return "`" + e.Name + "`"
	}
	return "?"
}

func mapValue(e ast.Expr) string {
	if m, ok := e.(*ast.MapType); ok {
		return "map[string]" + mapValue(m.Value)
	}
	return e.(*ast.Ident).Name
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
