package dataplane

import "testing"

// TestMostLabels: the largest tables that can be configured are taken by the kernel.
func TestMostLabels(t *testing.T) {
	r := newRouter(t)
	r.do(t, func() error {
		p, err := Open(Options{Dir: r.BPFFS(), Flows: 1024})
		if err != nil {
			return err
		}
		defer p.Close()
		defer p.Remove()
		l := p.Labels(LabelSizes{Labels: 1 << 20, NHLFEs: 1 << 20})
		defer l.Close()
		return l.UpdateLabels(&LabelUpdate{Whole: true})
	})
}
