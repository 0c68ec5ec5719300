// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"runtime"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// mostRealTime is how many active flows the real-time thread looks through: about 5 ms of
// work. A router with more of them looks through them on an ordinary thread, so that nothing else
// on that CPU stands still for long.
const mostRealTime = 32768

// spareProcs is how many processors of the Go scheduler there are beside one for each CPU. When
// the real-time thread comes out of a system call it must find a free one, although ordinary
// threads of this process hold some: those that were interrupted in the middle of their work, and
// one that was woken up to look for more and waits for its turn.
const spareProcs = 2

// ballast is memory that is never touched, so it takes none. A collection of garbage stops all
// threads, the real-time one among them, until ordinary ones had their turn. With the ballast it
// happens each time that so much was allocated, instead of each 4 MB.
var ballast = make([]byte, 16<<20)

// realTimeThread makes a thread that is scheduled ahead of all ordinary ones, if the kernel
// allows it, and returns a function that runs another one on it, once. end ends the thread if
// that was never called. It is made before dropRights, which takes the right away.
func (d *Daemon) realTimeThread() (run func(func()), end func()) {
	runtime.GOMAXPROCS(runtime.NumCPU() + spareProcs)
	work, refused := make(chan func()), make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock the thread ends with this goroutine
		refused <- kernel.RealTime()
		if f := <-work; f != nil {
			f()
		}
		runtime.KeepAlive(ballast)
	}()
	if d.refused = <-refused; d.refused != nil {
		d.log.Warn("the kernel refuses SCHED_RR: on a busy machine changes are obeyed late; set LimitRTPRIO=1 in the unit, or run with CAP_SYS_NICE",
			"err", d.refused)
	}
	return func(f func()) {
		done := make(chan bool)
		work <- func() { defer close(done); f() }
		<-done
	}, func() { close(work) }
}

// search puts the entries out of use that scopes are about, by a look at all active ones.
func (d *Daemon) search(scopes []dataplane.Scope) {
	if d.plane.Active() <= mostRealTime {
		d.plane.Forget(scopes)
		return
	}
	done := make(chan bool)
	go func() { // on another thread, since this one is locked
		defer close(done)
		d.plane.Forget(scopes)
	}()
	<-done
}
