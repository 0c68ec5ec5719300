// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// memory is what a Reader knows of nftables: its chains, judged rule by rule. What a rule says
// depends on itself and on the sets that it names, and on whether some other rule moves these. So
// after a change no chains are read but those that it touched, and those that name a set
// which it touched.
type memory struct {
	chains map[nft.Ref]*judged
	sets   *sets
}

// judged is a chain whose rules were read.
type judged struct {
	chain chain
	named []namedRule
	ipset bool
	uses  map[nft.Ref]bool // sets
	moves bool             // a rule of it moves a set, which others must not take for constant
}

// update brings the memory up to date and hands all chains to a walk.
func (m *memory) update(w *walk, touched nft.Touched) error {
	n, err := nft.Read()
	if err != nil {
		return err
	}
	m.forget(n, touched)
	for {
		again, err := m.read(n)
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	w.addNft(n, m)
	return nil
}

// forget drops what was touched, and what can change unannounced: sets whose elements packets add
// or time ends. If a chain that moves sets may be another one now, nothing is kept.
func (m *memory) forget(n *nft.Ruleset, touched nft.Touched) {
	there := make(map[nft.Ref]bool, len(n.Chains))
	for _, c := range n.Chains {
		there[c.Ref] = true
	}
	for ref, j := range m.chains {
		if j.moves && (touched.Chains[ref] || !there[ref]) {
			touched.All = true
		}
	}
	if m.chains == nil || touched.All {
		m.chains, m.sets = map[nft.Ref]*judged{}, newSets()
		return
	}
	fresh := func(set nft.Ref) bool {
		return touched.Sets[set] || n.Sets[set].Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) != 0
	}
	m.sets.forget(fresh)
	maps.DeleteFunc(m.chains, func(ref nft.Ref, j *judged) bool {
		return touched.Chains[ref] || !there[ref] || slices.ContainsFunc(slices.Collect(maps.Keys(j.uses)), fresh)
	})
}

// read reads the chains that are not known, of all tables: state that packets move in one may be
// asked in another. It reports whether that showed that others were judged wrongly: they are
// forgotten, and what is known of sets now holds for the next time.
func (m *memory) read(n *nft.Ruleset) (again bool, err error) {
	for _, c := range n.Chains {
		if m.chains[c.Ref] != nil {
			continue
		}
		j := &judged{chain: chain{name: nftChain(c.Ref)}, uses: map[nft.Ref]bool{}}
		if err := n.Rules(c.Ref, func(r nft.Rule) { j.put(compileNft(n, m.sets, j, r)) }); err != nil {
			return false, err
		}
		m.chains[c.Ref] = j
	}
	if again = m.sets.misjudged(); again {
		clear(m.chains)
	}
	return again, nil
}

// put adds a rule.
func (j *judged) put(r rule) {
	j.ipset = j.ipset || r.ipset
	if at := j.chain.add(r); len(r.feeds)+len(r.adds)+len(r.asks)+len(r.keeps) > 0 {
		j.named = append(j.named, namedRule{at: at, rule: r})
	}
}

// add gives a walk a copy of the chain, which it may change.
func (w *walk) add(j *judged) {
	c := j.chain
	c.rules = slices.Clone(c.rules)
	w.chains[c.name] = &c
	if j.ipset {
		w.silent("members of an ipset")
	}
	for _, n := range j.named {
		n.chain = &c
		w.named = append(w.named, n)
	}
}

// addNft takes the chains of all tables. Those of type nat see the first packet of a connection
// only. Only chains that forwarded packets reach are walked.
func (w *walk) addNft(n *nft.Ruleset, m *memory) {
	for name, s := range n.Sets {
		if s.Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) != 0 {
			w.silent(fmt.Sprintf("elements of set %s in table %s", name.Name, name.Table))
		}
	}
	for _, c := range n.Chains {
		w.add(m.chains[c.Ref])
		if c.Base && forwarded(c.Hook) && c.Type != "nat" {
			w.bases = append(w.bases, base{nftChain(c.Ref), c.Hook, c.Priority, families(c.Table.Family)})
		}
	}
}

func nftChain(c nft.Ref) chainName { return chainName{nftSource(c.Table.Family), c.Table.Name, c.Name} }
