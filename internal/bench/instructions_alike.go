package bench

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// heldSkbs keeps sk_buffs of the kernel occupied: messages in a socket that nobody reads.
//
// What it costs to free an sk_buff depends on the page it is on (SLUB: the current page's
// free list is quick, another page's is not), and how the 64 of a batch lie on pages
// depends on what else was allocated since boot: it moves a figure by up to 0.5 %, as long
// as the lab stands. With a few more held before each sample the border of pages moves
// through the batch, and the mean of the samples is the same in every boot.
type heldSkbs struct{ pair [2]int }

func holdSkbs() (*heldSkbs, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("bench: socketpair: %w", err)
	}
	return &heldSkbs{pair}, nil
}

// more holds another n.
func (h *heldSkbs) more(n int) error {
	for range n {
		if _, err := unix.Write(h.pair[0], []byte{0}); err != nil {
			return fmt.Errorf("bench: socketpair: %w", err)
		}
	}
	return nil
}

// release lets go of all.
func (h *heldSkbs) release() error {
	return errors.Join(unix.Close(h.pair[0]), unix.Close(h.pair[1]))
}
