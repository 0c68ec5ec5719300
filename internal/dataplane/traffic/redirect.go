// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// Redirect is an XDP program that sends all frames of one device out of another
// and does nothing else: the most that XDP can do on the machine at hand.
type Redirect struct {
	objects redirectObjects
	link    link.Link
}

type redirectObjects struct {
	Program *ebpf.Program `ebpf:"traffic_redirect"`
	Out     *ebpf.Map     `ebpf:"traffic_out"`
}

// AttachRedirect sends what comes in at one device of a namespace out of the other.
func AttachRedirect(n *lab.NS, from, to string) (*Redirect, error) {
	r := &Redirect{}
	err := loadProgram(&r.objects, nil)
	if err != nil {
		return nil, err
	}
	if err = sendTo(n, to, r.objects.Out); err == nil {
		r.link, err = attach(n, from, r.objects.Program)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close detaches and frees the redirect.
func (r *Redirect) Close() error {
	var err error
	if r.link != nil {
		err = r.link.Close()
	}
	r.objects.Program.Close()
	r.objects.Out.Close()
	return err
}
