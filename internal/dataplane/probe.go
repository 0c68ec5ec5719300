// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// Probe loads the programs over maps of their own, attaching and pinning nothing, and
// throws them away: what the kernel lacks is in the error. It needs root.
func Probe() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	o := Options{Flows: 1024}
	opts := ebpf.CollectionOptions{Cache: btf.NewCache()}
	for _, read := range []func() (*ebpf.CollectionSpec, error){loadTc, loadXdp, loadHealth} {
		c, err := loadObject(read, o, opts)
		if err != nil {
			return err
		}
		c.Close()
	}
	if _, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress}); err != nil {
		return fmt.Errorf("tcx (Linux 6.6): %w", err)
	}
	return nil
}

// Programs looks at an interface without a Plane: the id of shunt's XDP program there, if
// dir holds a pinned link for it, and the names of other people's tcx programs at ingress and at egress.
func Programs(dir string, index int) (own uint32, ingress, egress []string, err error) {
	p := &Plane{dir: dir, links: map[string]*attachment{}, names: map[ebpf.ProgramID]string{}}
	defer p.Close()
	for _, kind := range []string{"xdp", "ingress", "egress"} {
		name := linkName(index, kind)
		l, err := link.LoadPinnedLink(p.pin("links", name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, nil, nil, fmt.Errorf("%s: %w", p.pin("links", name), err)
		}
		p.links[name] = &attachment{link: l, index: index, kind: kind}
	}
	if a := p.links[strconv.Itoa(index)+"-xdp"]; a != nil {
		info, err := a.link.Info()
		if err != nil {
			return 0, nil, nil, err
		}
		own = uint32(info.Program)
	}
	ingress, egress, err = p.ForeignTCX(index)
	return own, ingress, egress, err
}
