// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// What the kernel takes for a frame depends a little on what it did before, and on addresses in its
// memory. Here is what was found to matter, by a tenth of a percent and more, and what makes one boot like another.

// manyNeighbours is how many neighbours the kernel has had, of either family, when the first frame is counted.
const manyNeighbours = 4096

// growNeighbours makes the kernel's neighbour tables large, and leaves them empty: they never shrink.
//
// After boot a table has eight buckets for the neighbours of all namespaces, by an address of memory and a number
// drawn at boot (arp_hashfn). Where two of a lab's share one, each packet to the second looks at one more: 5
// instructions, in every third lab, as long as it stands.
func growNeighbours() (err error) {
	l, err := lab.New("neighbours")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	ns, err := l.Namespaces("many")
	if err != nil {
		return err
	}
	lines := []string{"link add many type veth peer name none", "link set many up"} // of lo all are one (arp_constructor)
	for n := range manyNeighbours {
		for _, format := range []string{"198.18.%d.%d", "2001:2::%x:%x"} {
			lines = append(lines, fmt.Sprintf("neigh add "+format+" lladdr 02:00:00:00:00:01 dev many nud permanent", n>>8, n&0xff))
		}
	}
	if err := ns[0].IP(lines...); err != nil {
		return err
	}
	out, err := ns[0].Run("ip", "neigh", "show", "nud", "permanent")
	if got := strings.Count(out, "lladdr"); err == nil && got != 2*manyNeighbours {
		err = fmt.Errorf("bench: the kernel has %d neighbours of %d that it was given", got, 2*manyNeighbours)
	}
	return err
}

// heldSkbs keeps sk_buffs of the kernel occupied: messages in a socket that nobody reads.
//
// What it costs to free an sk_buff depends on the page it is on (SLUB: the current page's
// free list is quick, another page's is not), and how the 64 of a batch lie on pages
// depends on what else was allocated since boot: it moves a figure by up to 0.5 %, as long
// as the lab stands. With a few more held after each sample the border of pages moves through the
// batch: over all samples by one page (32 of them), so that these are the same in every boot, in
// another order.
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
