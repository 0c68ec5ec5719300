// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"math/rand/v2"
	"slices"

	"shunt/internal/lab"
)

// item is one frame of a fuzz script.
type item struct {
	frame    []byte
	from     int
	flow     int      // conversation, twice, plus direction; -1: none of them
	kind     []string // what was done to it; none: as it should be
	armed    bool     // made from a frame of a flow that is armed
	control  bool     // TCP: with SYN, FIN or RST, so its connection is left alone from here on
	waitFor  wait     // with shunt, before it is sent
	learning []int    // the conversations that are waited for
	seq, ack uint32   // TCP: as they should be
}

// wait is what must have happened before a frame is sent.
type wait int

const (
	waitNothing wait = iota
	waitLiberal      // the daemon has told conntrack to let them be
	waitSettled      // changes of a moment ago are announced
	waitArmed        // all of them are repeated
	waitOld          // the kernel has it all again, and UDP is old enough to be ASSURED
)

// fuzzScript is all frames in their order, and the conversations they belong to.
type fuzzScript struct {
	items         []item
	conversations []*conversation
	fence         *conversation
}

// director draws a script.
type director struct {
	*rand.Rand
	c     router
	lab   *lab.Topology
	s     *fuzzScript
	n     int // counts the packets of conversations
	port  uint16
	taken map[uint16]bool // source ports that mutants have
	armed []int           // conversations
	dying []int
	gone  []int // those of acts before
	spare int   // connections that may still die in this act
}

// act is how many frames there are between two times that connections which ended are
// replaced.
const act = 2000

// drawScript draws the frames for a router: acts of mostly mutated frames, before each of
// which new connections are opened until they are armed.
func drawScript(r *rand.Rand, c router, l *lab.Topology, packets int) *fuzzScript {
	d := &director{Rand: r, c: c, lab: l, s: &fuzzScript{}, port: 30000, taken: map[uint16]bool{}}
	opening := d.cast()
	for packets > 0 {
		d.open(opening)
		d.armed, d.dying, d.spare = append(d.armed, opening...), nil, 8
		n := min(act, packets)
		packets -= n
		for range n {
			d.one()
		}
		opening = d.replace()
	}
	w := waitOld
	for _, c := range slices.Concat(d.armed, d.dying, d.gone) {
		for way := range 2 {
			d.say(c, way, w, nil)
			w = waitNothing
		}
	}
	return d.s
}

// cast draws the first conversations: one of each kind, and TCP enough to lose some.
func (d *director) cast() (all []int) {
	for _, family := range d.c.families {
		for _, c := range d.c.conversations(d.lab, family, false) {
			if c.misfit {
				continue
			}
			all = append(all, d.add(c))
		}
		for range 4 {
			all = append(all, d.add(d.connection(family)))
		}
		if d.c.only == nil {
			// conntrack takes its checksum for one of UDP's (udplite_error), and calls it INVALID
			all = append(all, d.add(&conversation{name: "udp-lite", proto: protoUDPLite, slow: !d.c.open, ends: d.c.ends(d.lab, family, 29000)}),
				d.add(&conversation{name: "esp", proto: protoESP, ends: d.c.ends(d.lab, family, 29001)}))
		}
	}
	d.s.fence = &conversation{proto: protoUDP, ends: d.c.ends(d.lab, d.c.families[0], 29999)}
	return all
}

func (d *director) add(c *conversation) int {
	i := len(d.s.conversations)
	c.dscp = uint8(i * 5 & 63)
	d.s.conversations = append(d.s.conversations, c)
	return i
}

// connection is a new TCP connection by a port that was not used before.
func (d *director) connection(family int) *conversation {
	d.port++
	return &conversation{name: "tcp", proto: protoTCP, ends: d.c.ends(d.lab, family, d.port)}
}

// open says what arms conversations: a handshake, enough packets to be due, be-liberal, and
// a few more.
func (d *director) open(all []int) {
	if len(all) == 0 {
		return
	}
	round := func(w wait) {
		for i, c := range all {
			for way := range 2 {
				if i+way > 0 {
					w = waitNothing
				}
				d.say(c, way, w, all)
			}
		}
	}
	for _, c := range all {
		for _, s := range number(c, d.s.conversations[c].opening()) {
			d.s.items = append(d.s.items, item{frame: s.frame, from: s.from, flow: s.flow})
		}
	}
	for range d.c.threshold + 1 {
		round(waitNothing)
	}
	round(waitLiberal)
	for range 3 {
		round(waitSettled)
	}
	round(waitArmed)
}

// say adds the next packet of a conversation, as it should be, and not too long for the
// router. While a conversation is opened, none is at the end of its TTL behind it.
func (d *director) say(c, way int, w wait, all []int) {
	for {
		d.n++
		before := d.s.conversations[c].next
		s := number(c, d.s.conversations[c].talk(way, d.n))[0]
		if len(s.frame) > d.c.mtu || all != nil && (len(s.frame) > 600 || d.n%3 == 0) {
			d.s.conversations[c].next = before
			continue
		}
		d.s.items = append(d.s.items, item{frame: s.frame, from: s.from, flow: s.flow, waitFor: w, learning: all})
		return
	}
}

// one adds a frame of an act.
func (d *director) one() {
	switch x := d.IntN(100); {
	case x < 8:
		d.say(pick(d.Rand, d.armed), d.IntN(2), waitNothing, nil)
	case x < 10 && len(d.dying) > 0:
		d.say(pick(d.Rand, d.dying), d.IntN(2), waitNothing, nil)
	case x < 90:
		d.mutant()
	default:
		d.stranger()
	}
}

// mutant adds a frame of an armed flow to which something was done. The conversation goes
// on as if it had not been sent, but for a SYN, FIN or RST.
func (d *director) mutant() {
	c, way := pick(d.Rand, d.armed), d.IntN(2)
	if d.s.conversations[c].slow {
		c = pick(d.Rand, d.armed)
	}
	v := d.s.conversations[c]
	control := v.proto == protoTCP && d.spare > 0 && d.IntN(25) == 0
	if control {
		d.agree(c, way)
	}
	before := v.next
	d.n++
	s := number(c, v.talk(way, d.n))[0]
	v.next = before
	m := &mutant{Rand: d.Rand, conversation: v, way: way, frame: slices.Clone(s.frame), before: s.frame, c: d.c, taken: d.taken}
	if control && tcpControl(m) {
		m.did("tcp-control")
	}
	for range pick(d.Rand, []int{1, 1, 1, 1, 2, 3}) {
		if control && d.IntN(2) == 0 {
			break
		}
		if m.mutate(); m.last() {
			break
		}
	}
	for _, f := range append([][]byte{m.frame}, m.more...) {
		if v.proto == protoTCP {
			tame(f, before[way], before[1-way], control)
		}
		it := item{frame: f, from: s.from, flow: s.flow, kind: m.done, armed: !v.slow, control: control}
		it.seq, it.ack = before[way], before[1-way]
		d.s.items = append(d.s.items, it)
	}
	if control {
		d.spare--
		d.armed = slices.DeleteFunc(d.armed, func(i int) bool { return i == c })
		d.dying = append(d.dying, c)
	}
}

// agree lets both ends of a connection get over all that mutants claimed to have sent or
// got: conntrack and shunt both judge a FIN or RST by the last numbers that they have seen.
func (d *director) agree(c, way int) {
	for _, x := range []int{way, 1 - way} {
		d.s.conversations[c].next[x] += 1 << 20 // a hole, which they do not mind
		d.say(c, x, waitNothing, nil)
	}
	d.say(c, way, waitNothing, nil)
	d.say(c, 1-way, waitNothing, nil)
}

// replace opens a new connection for each that has ended.
func (d *director) replace() (opening []int) {
	d.gone = append(d.gone, d.dying...)
	for _, c := range d.dying {
		family := 4
		if d.s.conversations[c].ends[0].source.Addr().Is6() {
			family = 6
		}
		opening = append(opening, d.add(d.connection(family)))
	}
	return opening
}
