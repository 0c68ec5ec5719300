// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// DefaultFile is read, if it exists, where no other file is named.
const DefaultFile = "/etc/shunt/shunt.toml"

// Flag is a command line's word for a key of the file, as Config.Set takes them.
type Flag struct{ Key, Value string }

// Source names where a configuration comes from: a file, and flags, which win over it.
type Source struct {
	File  string // "": DefaultFile, if it exists
	Flags []Flag
}

// Effective is a checked configuration with the origin of each value.
type Effective struct {
	Config
	Source
	Read string // the file that was read; "": none

	keys []entry // of that file
}

// Load reads and checks a source. A wrong line is an *Error, a wrong flag a *FlagError; any
// other error is that of reading the file.
func (s Source) Load() (Effective, error) { return s.load(DefaultFile) }

func (s Source) load(defaultFile string) (Effective, error) {
	e := Effective{Config: Default(), Source: s, Read: s.File}
	if s.File == "" {
		e.Read = defaultFile
	}
	data, err := os.ReadFile(e.Read)
	switch {
	case s.File == "" && errors.Is(err, fs.ErrNotExist):
		e.Read = ""
	case err != nil:
		return e, err
	default:
		if err := e.parse(data); err != nil {
			return e, err
		}
	}
	for _, f := range s.Flags {
		if err := e.Set(f.Key, f.Value); err != nil {
			return e, &FlagError{fmt.Errorf("--%w", err)}
		}
	}
	return e, e.whole()
}

// FlagError is something wrong with a flag, or with what flags and defaults come to.
type FlagError struct{ error }

func (e *Effective) parse(data []byte) error {
	cfg, keys, err := parse(e.Read, data)
	if err != nil {
		return err
	}
	e.Config, e.keys = cfg, keys
	return nil
}

// whole checks file and flags taken together.
func (e *Effective) whole() error {
	err := e.Check()
	var about *keyError
	if !errors.As(err, &about) || e.Read == "" {
		if err != nil {
			return &FlagError{err}
		}
		return nil
	}
	return &Error{e.Read, e.line(about.key), about.what}
}

// line is where the file sets a key, such as "lease" or "police.ttl"; 0: nowhere.
func (e *Effective) line(key string) int {
	for _, k := range e.keys {
		if k.key() == key {
			return k.line
		}
	}
	return 0
}

// origin names where a key was set: a line of the file, a flag, both for a list, or "default".
func (e *Effective) origin(key string) string {
	flag := slices.ContainsFunc(e.Flags, func(f Flag) bool { return f.Key == key })
	line := e.line(key)
	switch {
	case flag && line > 0 && key == "port":
		return fmt.Sprintf("%s:%d and --port", e.Read, line)
	case flag:
		return "--" + key
	case line > 0:
		return fmt.Sprintf("%s:%d", e.Read, line)
	}
	return "default"
}

// fixed are the keys whose values a running daemon cannot change: they size what is loaded.
var fixed = []string{"flows", "labels"}

// Live reports, as an *Error with the line, why a running daemon cannot change from now to e.
func (e *Effective) Live(now *Effective) error {
	value := func(c *Effective, key string) string {
		return map[string]string{"flows": fmt.Sprint(c.Config.Flows), "labels": fmt.Sprint(c.Labels)}[key]
	}
	for _, key := range fixed {
		if has, wants := value(now, key), value(e, key); has != wants {
			return &Error{e.Read, e.line(key), fmt.Sprintf("%s = %s: the running daemon has %s, and changes it at a restart only", key, wants, has)}
		}
	}
	return nil
}
