// SPDX-License-Identifier: Apache-2.0

// Package daemon is `shunt run`: it decides which programs sit on which port, tells the
// data path what changed, and answers the API.
//
// It keeps no packet state. What it knows can be read again at any time (ports from the
// kernel, flows from the pinned maps, labels from their journal), so that a new daemon takes
// over where a dead one stopped, and nothing forwards differently in between: leases end by
// themselves.
//
// One goroutine owns the ports (loop in this file) and asks the kernel about them without
// a lock; the API reads what it showed of them last. Another one (follow) obeys what the
// kernel announces, on a real-time thread, and waits for nobody: what a change can have touched
// must prove itself again (scope.go). Label switching (mpls.go) is beside all that. Limit: one daemon serves one
// network namespace.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// How often the daemon looks at what no event tells.
const (
	beatEvery    = 500 * time.Millisecond // the data path takes it for dead after 3 s
	healthEvery  = 50 * time.Millisecond  // frames that a driver refuses
	reviewEvery  = time.Second            // wire behaviour of peers, lease, tcx programs
	losesFirst   = time.Second            // an egress that lost frames gets no XDP for so long
	losesHoldOff = 30 * time.Second       // and never for longer than that
	bumpEvery    = 24 * time.Hour         // jiffies are 32 bits: after weeks an old lease would seem to run again
)

// Daemon is one running `shunt run`.
type Daemon struct {
	cfg     atomic.Pointer[config.Effective] // in force; replaced, never changed
	paths   config.Paths
	netns   uint32 // inode
	plane   *dataplane.Plane
	hz      uint32
	started time.Time
	log     *slog.Logger
	stop    chan struct{}                       // closed by the API's stop
	hangup  chan os.Signal                      // SIGHUP: read the configuration again
	reloads chan chan error                     // the same, with an answer
	ended   chan struct{}                       // closed by loop: nobody answers reloads any more
	unheard string                              // loop's: why the service manager was not told, as logged
	ready   bool                                // the start came to its end
	refused error                               // why follow's thread is an ordinary one
	hooks   func(kernel.Link) ([]string, error) // kernel.Hooks, but in tests
	ports   map[int]*port                       // loop's: configured interfaces that are there now, by ifindex
	rules   *rulebook                           // which flows may be fast
	missing missing                             // connections that conntrack does not find; of the goroutine that serves requests
	labels  *labels                             // label switching
	cards   *cards                              // what was switched on network cards
	cpus    int                                 // that may redirect frames

	census atomic.Pointer[census] // for metrics; nil: not counted

	mu      sync.Mutex        // what loop and the API share
	shown   []shown           // the ports, as of the last review; replaced, never changed
	events  map[string]uint64 // announced changes by kind
	lease   leaseControl
	loading loading
	beaten  heartbeat
	closed  bool

	differences differences
}

// heartbeat is the last one: the data path's clock beside this process's.
type heartbeat struct {
	jiffies uint32
	at      time.Time
}

// Run serves until ctx ends, which leaves the data path as it is, or until the API's
// stop, which takes it away. A start that fails leaves what it found. Errors are one line.
func Run(ctx context.Context, cfg config.Effective, paths config.Paths) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP) // which would end a start that is under way
	defer signal.Stop(hangup)
	if err := fit(); err != nil {
		return err
	}
	paths, err := Locate(paths)
	if err != nil {
		return err
	}
	place, err := enter(paths)
	if err != nil {
		return err
	}
	defer place.close()
	d, err := open(cfg, paths)
	if err != nil {
		place.undo()
		return err
	}
	if err := place.leaveTraces(d.netns); err != nil {
		d.log.Warn("the state directory cannot be written; \"shunt stop\" will need --bpffs once this daemon is gone", "err", err)
	}
	d.hangup = hangup
	err = d.serve(ctx)
	switch {
	case d.stopped():
		left := errors.Join(d.plane.Remove(), d.plane.Close(), removePair())
		if left == nil { // else the lock file stays, and says where to look; no offload goes on above a program
			left = errors.Join(d.restoreCards(), place.remove())
		}
		return errors.Join(err, left)
	case !d.ready:
		if !d.plane.TookOver {
			err = errors.Join(err, d.plane.Remove(), d.restoreCards())
		}
		place.undo()
	default:
		d.sayFarewell()
	}
	d.plane.Close()
	return err
}

// fit is the error for a machine or a user that cannot run the daemon.
func fit() error {
	release, err := kernel.Version()
	if err != nil {
		return err
	}
	missing, err := kernel.MissingRights()
	if err != nil {
		return err
	}
	return judge(release, missing)
}

func judge(release kernel.Release, missing []string) error {
	if !release.AtLeast(6, 6) {
		return fmt.Errorf("kernel %s is too old: shunt needs 6.6 or later (tcx, kernel context casts, netdev features)", release)
	}
	if len(missing) > 0 {
		return fmt.Errorf("run needs root (%s): run it with sudo", strings.Join(missing, ", "))
	}
	return nil
}

func open(cfg config.Effective, paths config.Paths) (*Daemon, error) {
	hz, err := kernel.HZ()
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		paths: paths, hz: hz, started: time.Now(), log: slog.Default(),
		stop: make(chan struct{}), reloads: make(chan chan error), ended: make(chan struct{}), hooks: kernel.Hooks, ports: map[int]*port{}, events: map[string]uint64{},
	}
	d.cfg.Store(&cfg)
	if d.netns, err = netnsInode(); err != nil {
		return nil, err
	}
	if d.cards, err = openCards(paths.Cards(), d.log); err != nil {
		return nil, err
	}
	if d.cpus, err = kernel.CPUs(); err != nil {
		return nil, err
	}
	kernel.LoadConntrack()
	d.plane, err = dataplane.Open(dataplane.Options{Dir: paths.BPFFS, Flows: cfg.Config.Flows, Netns: d.netns})
	if err != nil {
		return nil, err
	}
	d.lease, d.loading = leaseControl{base: cfg.Lease, cpus: runtime.NumCPU()}, loading{at: d.started}
	d.rules = newRulebook(cfg.Config, d.plane, d.log)
	d.rules.wind = d.windClock
	d.labels = newLabels(d.log, d.plane.Labels(dataplane.LabelSizes{Labels: cfg.Labels, NHLFEs: cfg.Labels}), d.showing, func() []string { return d.cfg.Load().Exact() })
	d.configure(&cfg)
	if d.plane.TookOver {
		d.log.Info("took over the data path of an earlier daemon", "bpffs", paths.BPFFS)
	}
	return d, nil
}

func rates(police map[string]config.Rate) map[string]dataplane.Rate {
	all := map[string]dataplane.Rate{}
	for reason, rate := range police {
		all[reason] = dataplane.Rate{PerSecond: int(rate), Burst: rate.Burst()}
	}
	return all
}

func netnsInode() (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("network namespace: %w", err)
	}
	return uint32(st.Ino), nil
}

func (d *Daemon) jiffies(t time.Duration) uint32 {
	return uint32(t * time.Duration(d.hz) / time.Second)
}

func (d *Daemon) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watcher, err := kernel.Watch(ctx)
	if err != nil {
		return err
	}
	if err := d.plane.Watch(); err != nil {
		return err
	}
	if err := d.beat(); err != nil {
		return err
	}
	if err := d.differences.begin(d.plane); err != nil {
		return err
	}
	// what changed while nobody listened is unknown
	d.plane.Bump()
	stopReading := d.rules.begin(ctx)
	defer stopReading()
	d.plane.AttachedXDP = d.awaitCarrier // before there is traffic that waits, one port at a time
	if err := d.review(); err != nil {
		return err
	}
	d.plane.AttachedXDP = nil
	d.returnCards()
	ct, err := kernel.OpenConntrack()
	if err != nil {
		return err
	}
	defer ct.Close()
	books := &books{plane: d.plane, hz: d.hz, now: d.jiffiesNow, log: d.log}
	if books.ct, err = kernel.OpenConntrack(); err != nil {
		return err
	}
	defer books.ct.Close()
	resolver, err := kernel.OpenResolver()
	if err != nil {
		return err
	}
	defer resolver.Close()
	hear, stopHearing, err := d.plane.Events()
	if err != nil {
		return err
	}
	listener, err := api.Listen(d.paths.Socket())
	if err != nil {
		stopHearing()
		return err
	}
	stopPunts := d.openPunts(resolver)
	follow, stopFollowing := d.realTimeThread()
	defer stopFollowing()
	if err := errors.Join(d.labels.begin(d.paths.Labels(), resolver), d.dropRights()); err != nil {
		return errors.Join(err, stopHearing(), listener.Close(), stopPunts())
	}
	defer d.labels.end()
	d.ready = true
	defer os.Remove(d.paths.Socket())

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return api.NewServer(d).Serve(ctx, listener) })
	g.Go(func() error {
		return hear(dataplane.Listener{
			Request: func(q dataplane.Request) { d.serveRequest(ct, q) }, Difference: d.differs,
		})
	})
	g.Go(func() error { <-ctx.Done(); return errors.Join(stopHearing(), stopPunts()) })
	g.Go(func() error { d.labels.punts.serve(ctx); return nil })
	look := make(chan bool, 1)
	g.Go(func() error { follow(func() { d.follow(ctx, watcher.Next, look) }); return nil })
	g.Go(func() error { d.labels.run(ctx); return nil })
	g.Go(func() error { d.metrics(ctx); return nil })
	g.Go(func() error { books.run(ctx); return nil })
	g.Go(func() error {
		defer cancel()
		return d.loop(ctx, look)
	})
	d.sayProblems()
	d.log.Info("ready", "socket", d.paths.Socket(), "state", filepath.Clean(d.paths.State))
	err = g.Wait()
	if d.stopped() {
		d.plane.Retire() // or a hit would hide from conntrack what follows
		books.release()
	}
	return err
}

// openPunts opens the socket for labelled packets that are passed up, while there is the right
// to. Label switching does without where there is none.
func (d *Daemon) openPunts(resolver *kernel.Resolver) (stop func() error) {
	socket, err := kernel.OpenLabelSocket()
	if err != nil {
		d.log.Warn("labelled packets that expire, or are too big, will have no answer: run with CAP_NET_RAW", "err", err)
		return func() error { return nil }
	}
	d.labels.punts = newPunts(d.labels, socket, resolver.Addresses)
	return socket.Close
}

// dropRights gives up what only the start took.
func (d *Daemon) dropRights() error {
	err := kernel.DropRights()
	if errors.Is(err, errors.ErrUnsupported) {
		d.log.Warn("all rights are kept: this program was built with cgo; build it with CGO_ENABLED=0, as make does")
		return nil
	}
	return err
}

// beat tells the data path that this daemon lives. Only loop's goroutine may: if the API
// did it too, a loop that hangs would look alive.
func (d *Daemon) beat() error {
	now, err := d.plane.Beat()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beaten = heartbeat{now, time.Now()}
	return nil
}

// jiffiesNow is the data path's clock.
func (d *Daemon) jiffiesNow() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.beaten.jiffies + d.jiffies(time.Since(d.beaten.at))
}

// loop owns the ports. It ends with ctx or by the API's stop.
func (d *Daemon) loop(ctx context.Context, look <-chan bool) error {
	beat, health, review := time.NewTicker(beatEvery), time.NewTicker(healthEvery), time.NewTicker(reviewEvery)
	bump := time.NewTicker(bumpEvery)
	defer beat.Stop()
	defer health.Stop()
	defer review.Stop()
	defer bump.Stop()
	defer close(d.ended)
	d.notify(systemd.SdNotifyReady)
	defer d.notify(systemd.SdNotifyStopping)
	watched := true
	for {
		if fast := d.redirects(); fast != watched { // asleep, this process takes no time from anybody
			watched = fast
			health.Stop()
			if fast {
				d.transmitsFromNow()
				health.Reset(healthEvery)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.stop:
			return nil
		case <-d.hangup:
			d.reload()
		case answer := <-d.reloads:
			answer <- d.reload()
		case <-look:
			d.hooksChanged()
			d.reviewAgain()
		case <-health.C:
			d.checkTransmits()
		case <-beat.C:
			if err := d.beat(); err != nil {
				d.log.Error("heartbeat failed", "err", err)
				break
			}
			d.notify(systemd.SdNotifyWatchdog) // the service manager sees no sign of life that the data path does not
		case <-bump.C:
			d.plane.Bump()
		case <-review.C:
			d.observe(time.Now())
			lost := d.prove(time.Now())
			d.stretchLease()
			d.reviewAgain()
			if lost {
				d.reviewAgain()
			}
		}
	}
}

func (d *Daemon) stopped() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}
