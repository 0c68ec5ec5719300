// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"shunt/internal/api"
)

// journal is the file from which a new daemon has the tables of the last one: a line of JSON for
// each transaction, of which the first may stand for all that were before.
//
// It is not synced. It outlives the daemon, as the data path does; where the state directory
// is in memory, as it is by default, it goes with both when the machine is started anew.
type journal struct {
	path string
	file *os.File
	size int64 // of what is written whole
	base int64 // size when it was last compacted, or that of the largest transaction since
}

// record is a line of the journal.
type record struct {
	Time   time.Time `json:"time"`
	Origin string    `json:"origin"`
	Lines  []string  `json:"lines"`
}

// line is the record as the journal has it. The lines of a load are millions: those are the
// API's to write, which does so faster than encoding/json.
func (r record) line() ([]byte, error) {
	lines := r.Lines
	r.Lines = []string{}
	head, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	size := len(head)
	for _, line := range lines {
		size += len(line) + 3
	}
	b := append(make([]byte, 0, size+1), bytes.TrimSuffix(head, []byte("[]}"))...)
	return append(api.AppendStrings(b, lines), "}\n"...), nil
}

// journalNew ends the name of a journal that is being compacted.
const journalNew = ".new"

// journalSlack is how far a journal may grow before it is compacted, beyond twice what it was
// after that was done last, in bytes.
const journalSlack = 16 << 20

// readJournal calls redo for each transaction of a journal, if there is one, and returns how many
// bytes of it are whole. torn says that a daemon died while it wrote the last one, which was never
// answered, and is left out.
func readJournal(path string, redo func(record) error) (whole int64, torn bool, err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("journal: %w", err)
	}
	defer file.Close()
	whole, torn, err = readRecords(bufio.NewReaderSize(file, 1<<20), redo)
	if err != nil {
		err = fmt.Errorf("journal %s: %w; remove the file to begin with empty tables", path, err)
	}
	return whole, torn, err
}

func readRecords(in *bufio.Reader, redo func(record) error) (whole int64, torn bool, err error) {
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, len(line) > 0, nil
		}
		if err != nil {
			return whole, false, err
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			if _, err := in.Peek(1); errors.Is(err, io.EOF) {
				return whole, true, nil
			}
			return whole, false, fmt.Errorf("line %d: %w", n, err)
		}
		if err := redo(r); err != nil {
			return whole, false, fmt.Errorf("line %d: %w", n, err)
		}
		whole += int64(len(line))
	}
}

// newJournal begins a journal with one transaction, in the place of the one that was there.
func newJournal(path string, r record) (*journal, error) {
	j := &journal{path: path}
	return j, j.compact(r)
}

// keepJournal goes on with a journal of which so many bytes are whole: where there is no room for a
// compacted one. Where not even that can be written, each transaction tries to open it again.
func keepJournal(path string, whole int64) *journal {
	j := &journal{path: path, size: whole, base: whole}
	j.reopen()
	return j
}

// reopen opens the file if it is not open.
func (j *journal) reopen() error {
	if j.file != nil {
		return nil
	}
	file, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w; make room there, or name another directory with --state", err)
	}
	j.file = file
	if err := j.cut(); err != nil {
		j.file = nil
		return errors.Join(fmt.Errorf("journal: %w", err), file.Close())
	}
	return nil
}

// cut takes away what is behind the last transaction that counts.
func (j *journal) cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	_, err := j.file.Seek(j.size, io.SeekStart)
	return err
}

// add writes a transaction. It is all there or, after an error, not at all.
func (j *journal) add(r record) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	if err := j.reopen(); err != nil {
		return err
	}
	if _, err := j.file.Write(line); err != nil {
		return errors.Join(fmt.Errorf("journal: %w; make room there, or name another directory with --state", err), j.cut())
	}
	j.size += int64(len(line))
	j.base = max(j.base, int64(len(line))) // to compact what is one load would make nothing shorter
	return nil
}

// drop takes the transaction away again that began at a size of before.
func (j *journal) drop(before int64) error {
	j.size = before
	return j.cut()
}

// long tells whether it is time to compact.
func (j *journal) long() bool { return j.size > 2*j.base+journalSlack }

// compact puts one transaction in the place of all. It happens at once or, after an error, not
// at all.
func (j *journal) compact(r record) error {
	next, err := os.OpenFile(j.path+journalNew, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	fresh := &journal{path: j.path, file: next}
	if len(r.Lines) > 0 {
		err = fresh.add(r)
	}
	if err == nil {
		err = os.Rename(next.Name(), j.path)
	}
	if err != nil {
		next.Close()
		return errors.Join(fmt.Errorf("journal: %w", err), os.Remove(next.Name()))
	}
	j.close()
	fresh.base = fresh.size
	*j = *fresh
	return nil
}

func (j *journal) close() {
	if j.file != nil {
		j.file.Close()
	}
}

// removeJournal takes a journal away, and what a daemon that died compacting it left.
func removeJournal(path string) {
	os.Remove(path)
	os.Remove(path + journalNew)
}
