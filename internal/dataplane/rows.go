// SPDX-License-Identifier: Apache-2.0

package dataplane

import "errors"

var errNoRoom = errors.New("no room")

// row hands out the rows of a table, from 1 to most. One that is given back rests until no
// packet can be reading it.
type row struct {
	next, most  uint32
	free, limbo []uint32
}

func (r *row) take() (uint32, error) {
	if len(r.free) == 0 && r.next < r.most {
		r.next++
		return r.next, nil
	}
	if len(r.free) == 0 && len(r.limbo) > 0 {
		grace()
		r.free, r.limbo = r.limbo, nil
	}
	if len(r.free) == 0 {
		return 0, errNoRoom
	}
	n := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return n, nil
}

func (r *row) give(n uint32) {
	if n != 0 {
		r.limbo = append(r.limbo, n)
	}
}

// rows are a table's rows by what they are for.
type rows[K comparable] struct {
	row
	of map[K]uint32
}

// newRows is for a table of so many rows, row 0 included.
func newRows[K comparable](n int) rows[K] {
	return rows[K]{row: row{most: uint32(n - 1)}, of: map[K]uint32{}}
}

// get is the row of k, and whether it is a new one.
func (r *rows[K]) get(k K) (n uint32, fresh bool, err error) {
	if n, ok := r.of[k]; ok {
		return n, false, nil
	}
	if n, err = r.take(); err != nil {
		return 0, false, err
	}
	r.of[k] = n
	return n, true, nil
}

func (r *rows[K]) drop(k K) {
	if n, ok := r.of[k]; ok {
		r.give(n)
		delete(r.of, k)
	}
}
