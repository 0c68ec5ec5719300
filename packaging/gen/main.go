// SPDX-License-Identifier: Apache-2.0

// Command gen writes the files of a package that follow from the program: manual pages and shell
// completion from its commands, shunt.toml and its manual page from the reference of the
// configuration.
//
//	go run ./packaging/gen DIR
//
// SOURCE_DATE_EPOCH, in seconds, dates the pages; the same tree gives the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"shunt/internal/cli"
	"shunt/internal/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	date, err := epoch()
	if err != nil {
		return err
	}
	pages, err := manual(date)
	if err != nil {
		return err
	}
	files, err := completion()
	if err != nil {
		return err
	}
	for name, page := range pages {
		if files["usr/share/man/"+name+".gz"], err = compress(page); err != nil {
			return err
		}
	}
	files["etc/shunt/shunt.toml"] = []byte(settings())
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func epoch() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// compress stores no time and no name, so that equal pages are equal bytes.
func compress(page []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(page)
	}
	if err == nil {
		err = z.Close()
	}
	return b.Bytes(), err
}

// manual returns a page for every command, and one for the configuration file, by file name.
func manual(date time.Time) (map[string][]byte, error) {
	pages := map[string][]byte{"man5/shunt.toml.5": filePage(date)}
	root := cli.Commands()
	root.DisableAutoGenTag = true
	var add func(cmd *cobra.Command) error
	add = func(cmd *cobra.Command) error {
		if !cmd.IsAvailableCommand() && cmd != root || cmd.IsAdditionalHelpTopicCommand() {
			return nil
		}
		var b bytes.Buffer
		header := doc.GenManHeader{Section: "8", Date: &date, Source: "shunt", Manual: "shunt"}
		if err := doc.GenMan(literal(cmd), &header, &b); err != nil {
			return err
		}
		pages["man8/"+strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".8"] = b.Bytes()
		for _, below := range cmd.Commands() {
			if err := add(below); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, add(root)
}

// literal fences a long help that has pictures or columns: Markdown keeps indented lines only after
// an empty one.
func literal(cmd *cobra.Command) *cobra.Command {
	if strings.Contains(cmd.Long, "\n  ") {
		cmd.Long = "```\n" + cmd.Long + "\n```"
	}
	return cmd
}

// filePage is shunt.toml(5).
func filePage(date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH SHUNT.TOML 5 %q shunt shunt\n", date.Format("Jan 2006"))
	b.WriteString(".SH NAME\nshunt.toml \\- configuration of shunt\n.SH SYNOPSIS\n.B " + config.DefaultFile + "\n" +
		".SH DESCRIPTION\nEvery key with its default. The file is strict: an unknown key or a wrong value is refused\n" +
		"with its line. Test a file with\n.BR \"shunt config check\" ;\napply it to the running daemon with\n.BR \"systemctl reload shunt\" .\n.PP\n.nf\n")
	for line := range strings.Lines(config.Reference) {
		line = strings.ReplaceAll(line, `\`, `\e`)
		line = strings.ReplaceAll(line, "-", `\-`)
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		b.WriteString(line)
	}
	b.WriteString(".fi\n.SH SEE ALSO\n.BR shunt (8),\n.BR shunt\\-config (8),\n.BR shunt\\-reload (8)\n")
	return b.Bytes()
}

func completion() (map[string][]byte, error) {
	root := cli.Commands()
	var bash, zsh, fish bytes.Buffer
	if err := root.GenBashCompletionV2(&bash, true); err != nil {
		return nil, err
	}
	if err := root.GenZshCompletion(&zsh); err != nil {
		return nil, err
	}
	if err := root.GenFishCompletion(&fish, true); err != nil {
		return nil, err
	}
	return map[string][]byte{
		"usr/share/bash-completion/completions/shunt":    bash.Bytes(),
		"usr/share/zsh/vendor-completions/_shunt":        zsh.Bytes(),
		"usr/share/fish/vendor_completions.d/shunt.fish": fish.Bytes(),
	}, nil
}

const head = `# The configuration of shunt. Each key is here with its default or an example, behind a #.
# Take the # from the lines that you change; port is the only one that shunt needs.
#
#   shunt config check         is the file valid?
#   systemctl reload shunt     apply it: the whole of it, or nothing
#   shunt config show          what is in force
#
# Unknown keys and wrong values are refused with their line.
`

var setting = regexp.MustCompile(`(?m)^[^#\n]`)

// settings is the installed shunt.toml: the reference with another head and every setting commented out.
func settings() string {
	_, body, _ := strings.Cut(config.Reference, "\n\n")
	return head + "\n" + setting.ReplaceAllString(body, "#$0")
}
