// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

// ABIVersion is the version of the pinned maps' layout, from bpf/abi.h.
const ABIVersion = int(tcAbiABI_VERSION)

// controlMap is the name of the section that bpf/maps.h puts struct control in.
const controlMap = ".data.control"

// What is one global variable in bpf/ is one value of a map here: the flow table, and all rows
// of sightings, of counters, of transmits, and all notebooks.
const (
	flowsMap     = ".data.flows"
	armedMap     = ".data.armed"
	unsettledMap = ".data.unsettled"
	sightingsMap = ".data.sightings"
	countersMap  = ".data.counters"
	transmitsMap = ".data.transmits"
	notebooksMap = ".data.notebooks"
)

// Options say where the data path lives and how large its table is.
type Options struct {
	Dir   string // directory on a bpffs
	Flows int    // slots, a power of two
	Netns uint32 // inode number of this network namespace

	// SightingAge is how old a sighting may be when its packet comes out, under 2 s; 0 means DefaultSightingAge.
	SightingAge time.Duration
}

// DefaultSightingAge is longer than a packet's way through the stack, and too short for the
// memory of its skb to be another packet's that TC ingress has not seen.
const DefaultSightingAge = time.Millisecond

// Settings are what the daemon tells every packet. Times are in jiffies.
type Settings struct {
	Threshold uint32
	Lease     uint32 // with the daemon dead
	LeaseLive uint32 // while it beats
	HZ        uint32
	TCP       bool
	Verify    uint32 // every Nth flow is proved each 250 ms; 0: none

	SourceFlows int             // slots that one source may hold; 0: any number
	Police      map[string]Rate // what the kernel gets, by reason; the rest of these is dropped
}

// Plane is one loaded data path.
type Plane struct {
	dir    string
	maps   map[string]*ebpf.Map
	xdp    *ebpf.Program
	in     *ebpf.Program // TC ingress without XDP
	after  *ebpf.Program // TC ingress after XDP
	out    *ebpf.Program
	beat   *ebpf.Program
	watch  map[string]*ebpf.Program
	links  map[string]*attachment
	ports  map[int]Attach // as last wanted
	ctl    *ebpf.Memory
	flows  *ebpf.Memory
	count  *ebpf.Memory
	sent   *ebpf.Memory
	notes  *ebpf.Memory
	types  *btf.Cache       // the kernel's, for the programs that the first label tables come with
	loaded map[tcLoaded]int // numbers in the instructions of all objects

	inUse [tcAbiMAX_PORTS]atomic.Bool // rows of counters that can be other than zero

	refused map[int]error             // ports without the XDP program that is wanted, by ifindex
	names   map[ebpf.ProgramID]string // other people's tcx programs; the daemon gives up the right to read a name
	table   table
	turn    int        // the word of table.unsettled that Unsettled was at
	raise   sync.Mutex // Bump reads, then writes; Forget clears bits that it alone reads, and reads ports
	obeyed  []obeyed   // by Forget, a while ago; under raise

	give    sync.Mutex            // guards special and given, and XDP links as they are made or replaced
	special map[int]*ebpf.Program // XDP programs of ports that have another one; nil: an earlier daemon's
	given   map[ebpf.ProgramID]bool

	// TookOver tells that the maps and links of an earlier process were kept.
	TookOver bool
	// AttachedXDP, if there is one, is called by Apply when a port has got the XDP program.
	AttachedXDP func(index int)

	closers []func() error
}

// Open loads the programs and takes over what is pinned in o.Dir, or begins afresh: what
// another ABI, another size or a removal that failed left there is detached and removed
// first.
//
// Nothing new is attached: ports that were attached before stay so and get the new
// programs, the rest is Apply's. An error leaves what could have been taken over pinned,
// and nothing of a fresh start. No other process can open the directory until Close.
func Open(o Options) (*Plane, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("memory lock limit: %w; run as root", err)
	}
	if err := prepareDir(o.Dir); err != nil {
		return nil, err
	}
	release, err := hold(o.Dir)
	if err != nil {
		return nil, err
	}
	p := &Plane{
		dir: o.Dir, links: map[string]*attachment{}, ports: map[int]Attach{}, refused: map[int]error{}, names: map[ebpf.ProgramID]string{}, special: map[int]*ebpf.Program{}, given: map[ebpf.ProgramID]bool{},
		closers: []func() error{release},
	}
	if err := p.begin(o); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// begin is Open, once the directory is held.
func (p *Plane) begin(o Options) error {
	pinned, err := p.openPinned(o)
	if err != nil {
		return err
	}
	if pinned != nil {
		p.TookOver = true
		if err := p.load(o, pinned); err != nil {
			return err
		}
		p.countedBefore()
		return p.adoptLinks()
	}
	if err := empty(o.Dir); err != nil {
		return err
	}
	if err := prepareDir(o.Dir); err != nil {
		return err
	}
	if err := p.load(o, nil); err != nil {
		return errors.Join(err, removeDir(o.Dir))
	}
	return nil
}

// mapNames are the maps that Open pins and takes over.
func mapNames(spec *ebpf.CollectionSpec) []string {
	var names []string
	for name := range spec.Maps {
		if name != ".bss" {
			names = append(names, name)
		}
	}
	return names
}

// openPinned returns the maps of an earlier process, or nil if there are none that fit.
func (p *Plane) openPinned(o Options) (map[string]*ebpf.Map, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, err
	}
	maps := map[string]*ebpf.Map{}
	drop := func() {
		for _, m := range maps {
			m.Close()
		}
	}
	for _, name := range mapNames(spec) {
		m, err := ebpf.LoadPinnedMap(p.pin("maps", name), nil)
		if errors.Is(err, os.ErrNotExist) {
			drop()
			return nil, nil
		}
		if err != nil {
			drop()
			return nil, fmt.Errorf("%s: %w; remove it with \"shunt stop\"", p.pin("maps", name), err)
		}
		maps[name] = m
	}
	sizeSpecs(spec, o)
	var c tcControl
	ok := maps[controlMap].Lookup(uint32(0), &c) == nil && int(c.Abi) == ABIVersion && c.Paused != removing
	for name, m := range maps {
		s := spec.Maps[name]
		ok = ok && m.Type() == s.Type && m.ValueSize() == s.ValueSize && m.MaxEntries() == s.MaxEntries
	}
	if !ok {
		drop()
		return nil, nil
	}
	return maps, nil
}

// pin is where something is pinned; bpffs takes no dots in names.
func (p *Plane) pin(kind, name string) string {
	return filepath.Join(p.dir, kind, strings.TrimPrefix(name, ".data."))
}

func sizeSpecs(spec *ebpf.CollectionSpec, o Options) {
	for name, size := range map[string]int{
		flowsMap: o.Flows * int(tcAbiSLOT_SIZE), armedMap: o.Flows / 8, unsettledMap: o.Flows / 8, sightingsMap: cpus() * sightingsOfCPU,
		countersMap: cpus() * countersOfCPU, transmitsMap: cpus() * transmitsOfCPU, notebooksMap: cpus() * notebookSize,
	} {
		resize(spec, name, size)
	}
}

// resize sets the length in bytes of a global variable that has a map of its own.
func resize(spec *ebpf.CollectionSpec, name string, size int) {
	m := spec.Maps[name]
	if m == nil {
		return
	}
	m.ValueSize = uint32(size)
	m.Key, m.Value = nil, nil // the kernel would compare the size with theirs
	m.Contents = nil          // zeros, as many as are needed
	delete(spec.Variables, strings.TrimPrefix(name, ".data."))
}

// cpus is the number of CPUs that may ever be there, rounded up to a power of two.
func cpus() int { return 1 << bits.Len(uint(ebpf.MustPossibleCPU()-1)) }

// load makes the three objects over one set of maps and pins those that are new.
func (p *Plane) load(o Options, pinned map[string]*ebpf.Map) error {
	p.types, p.loaded = btf.NewCache(), o.loaded()
	opts := ebpf.CollectionOptions{MapReplacements: pinned, Cache: p.types}
	object := func(read func() (*ebpf.CollectionSpec, error)) (*ebpf.Collection, error) {
		c, err := loadObject(read, o, opts)
		if err != nil {
			return nil, fmt.Errorf("%w; shunt needs root and Linux 6.6 or later with BTF, see \"shunt doctor\"", err)
		}
		return c, nil
	}
	tc, err := object(loadTc)
	if err != nil {
		return err
	}
	p.maps = map[string]*ebpf.Map{}
	for name, m := range tc.Maps {
		if name != ".bss" {
			p.maps[name] = m
		}
	}
	opts.MapReplacements = p.maps
	xdp, err := object(loadXdp)
	if err != nil {
		return err
	}
	health, err := object(loadHealth)
	if err != nil {
		return err
	}
	p.in, p.out = tc.Programs["shunt_ingress"], tc.Programs["shunt_egress"]
	p.after = tc.Programs["shunt_after_xdp"]
	p.xdp = xdp.Programs["shunt_xdp"]
	p.beat = health.Programs["shunt_beat"]
	p.watch = map[string]*ebpf.Program{"xmit": health.Programs["shunt_xmit"], "redirect_err": health.Programs["shunt_redirect_err"]}
	p.closers = append(p.closers, closing(tc), closing(xdp), closing(health))
	if err := p.readMemory(); err != nil {
		return err
	}
	if err := p.mapTable(); err != nil {
		return err
	}
	if pinned != nil {
		return nil
	}
	if err := p.writeControl(tcControl{Abi: uint32(ABIVersion), Gen: 1, Watch: 1, Secret: newSecret(o.Flows / int(tcAbiWAYS)), Mix: random64() | 1, LabelHold: math.MaxUint32}); err != nil {
		return err
	}
	for name, m := range p.maps {
		if err := m.Pin(p.pin("maps", name)); err != nil {
			return fmt.Errorf("%s: %w", p.pin("maps", name), err)
		}
	}
	return nil
}

func closing(c *ebpf.Collection) func() error { return func() error { c.Close(); return nil } }

func loadObject(read func() (*ebpf.CollectionSpec, error), o Options, opts ebpf.CollectionOptions) (*ebpf.Collection, error) {
	spec, err := read()
	if err != nil {
		return nil, err
	}
	sizeSpecs(spec, o)
	put(spec.Programs, o.loaded())
	return loadOver(spec, opts)
}

// loaded are the numbers in the instructions of all objects.
func (o Options) loaded() map[tcLoaded]int {
	return map[tcLoaded]int{
		tcLoadedCPUS: cpus() - 1, tcLoadedNETNS: int(o.Netns),
		tcLoadedBUCKET_SHIFT: 32 - bits.Len(uint(o.Flows/int(tcAbiWAYS)-1)),
		tcLoadedSIGHTING_AGE: int(cmp.Or(o.SightingAge, DefaultSightingAge)), tcLoadedCT_LOOKUPS: ctLookups(),
	}
}

// put writes numbers into instructions, in the place of enum loaded.
func put(programs map[string]*ebpf.ProgramSpec, numbers map[tcLoaded]int) {
	for _, prog := range programs {
		for i := range prog.Instructions {
			ins := &prog.Instructions[i]
			if n, ok := numbers[tcLoaded(ins.Constant)]; ok && ins.OpCode.Class().IsALU() && ins.OpCode.Source() == asm.ImmSource {
				ins.Constant = int64(n)
			}
		}
	}
}

// loadOver loads an object over those maps of opts that it has.
func loadOver(spec *ebpf.CollectionSpec, opts ebpf.CollectionOptions) (*ebpf.Collection, error) {
	replace := map[string]*ebpf.Map{}
	for name, m := range opts.MapReplacements {
		if spec.Maps[name] != nil {
			replace[name] = m
		}
	}
	opts.MapReplacements = replace
	c, err := ebpf.NewCollectionWithOptions(spec, opts)
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		return nil, fmt.Errorf("kernel refuses a program: %w", err)
	}
	return c, err
}

func (p *Plane) writeControl(c tcControl) error {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c))
	_, err := p.ctl.WriteAt(b, 0)
	return err
}

func (p *Plane) control() tcControl {
	var c tcControl
	p.ctl.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), 0)
	return c
}

// setWord writes one field of struct control; a packet sees the old value or the new one.
func (p *Plane) setWord(offset uintptr, v uint32) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	p.ctl.WriteAt(b[:], int64(offset))
}

// Configure writes the settings.
func (p *Plane) Configure(s Settings) {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.Threshold), s.Threshold)
	p.setWord(unsafe.Offsetof(c.Lease), s.Lease)
	p.SetLiveLease(s.LeaseLive)
	p.setWord(unsafe.Offsetof(c.Verify), s.Verify)
	p.setWord(unsafe.Offsetof(c.Hz), s.HZ)
	p.setWord(unsafe.Offsetof(c.Idle), s.HZ)
	p.setWord(unsafe.Offsetof(c.BeatMax), 3*s.HZ)
	p.setWord(unsafe.Offsetof(c.SourceFlows), uint32(s.SourceFlows))
	p.police(s.Police)
	off := uint32(1)
	if s.TCP {
		off = 0
	}
	was := p.control().TcpOff
	if s.TCP && was != 0 {
		p.unwatched()
	}
	p.setWord(unsafe.Offsetof(c.TcpOff), off)
	if off != was {
		p.Bump() // a hit does not ask: with TCP off nothing of TCP is armed
	}
	// what a driver could not do for an earlier process it may do now; if not, XDP sets it again
	p.setWord(unsafe.Offsetof(c.NoMarks), 0)
}

// SetLease sets the lease, in jiffies, that is given while the daemon is dead.
func (p *Plane) SetLease(jiffies uint32) {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.Lease), jiffies)
}

// LoseMarks has TC ingress judge every packet for itself, as XDP does where a driver refuses metadata.
func (p *Plane) LoseMarks() {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.NoMarks), 1)
}

// SetLiveLease sets the lease, in jiffies, that is given while the daemon beats.
func (p *Plane) SetLiveLease(jiffies uint32) {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.LeaseLive), jiffies)
}

// Pause makes every packet the kernel's, or ends that. Nothing is detached. Entries from
// before a pause are used neither in it nor after it, when what their flows did meanwhile
// was not seen: so a hit need not ask for the pause, nothing of its generation is there.
func (p *Plane) Pause(paused bool) {
	var c tcControl
	if !paused {
		if p.Paused() {
			p.unwatched()
		}
		p.setWord(unsafe.Offsetof(c.Paused), 0)
		return
	}
	p.setWord(unsafe.Offsetof(c.Paused), 1)
	p.Bump()
}

// Paused tells whether Pause is in force.
func (p *Plane) Paused() bool { return p.control().Paused != 0 }

// Bump raises the generation: no entry learned before it is used again.
func (p *Plane) Bump() {
	p.raise.Lock()
	defer p.raise.Unlock()
	var c tcControl
	next := p.control().Gen + 1
	if next == uint32(tcAbiGEN_NEVER) {
		next++
	}
	p.setWord(unsafe.Offsetof(c.Gen), next)
}

// Generation returns the current generation.
func (p *Plane) Generation() uint32 { return p.control().Gen }

// Beat tells the data path that the daemon lives, and returns the kernel's jiffies (32 bits).
func (p *Plane) Beat() (uint32, error) {
	if _, err := p.beat.Run(nil); err != nil {
		return 0, fmt.Errorf("heartbeat: %w", err)
	}
	return p.control().Beat, nil
}

// Close lets go of everything; what is pinned goes on without this process.
func (p *Plane) Close() error {
	for _, a := range p.links {
		a.link.Close()
	}
	var errs []error
	for _, f := range p.closers {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// Retire makes every packet the kernel's until the next Open, as Remove does first.
func (p *Plane) Retire() { p.retire() }

// Remove takes the data path away: all programs from all ports, and everything pinned.
// From its first moment on no packet is repeated, and if it fails, no packet is until the
// next Open begins afresh. The Plane can only be closed afterwards.
func (p *Plane) Remove() error {
	p.retire()
	var errs []error
	for name, a := range p.links {
		errs = append(errs, a.release())
		delete(p.links, name)
	}
	return errors.Join(append(errs, removeDir(p.dir))...)
}
