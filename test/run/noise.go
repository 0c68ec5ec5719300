// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// makeNoise makes this machine one whose hypervisor also runs others, until the process ends:
// on each CPU a real-time thread burns 1 to 8 ms, now and then 40, every 30 to 300 ms.
// Meanwhile nothing else runs there, softirqs and BPF programs included. Beside them two
// threads of ordinary priority burn two thirds of their time. seed fixes all lengths.
func makeNoise(seed uint64) error {
	cpus := runtime.NumCPU()
	runtime.GOMAXPROCS(2*cpus + 4) // so that a thread that burns keeps none of ours waiting
	ready := make(chan error)
	for cpu := range cpus {
		go burst(cpu, rand.New(rand.NewPCG(seed, uint64(cpu))), ready)
	}
	var errs []error
	for range cpus {
		errs = append(errs, <-ready)
	}
	for n := range 2 {
		go hog(rand.New(rand.NewPCG(seed, uint64(cpus+n))))
	}
	return errors.Join(errs...)
}

// burst takes one CPU away from all others in bursts.
func burst(cpu int, random *rand.Rand, ready chan<- error) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	err := unix.SchedSetaffinity(0, &set)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}, 0)
	}
	if err != nil {
		ready <- fmt.Errorf("noise on CPU %d: %w; it needs root and a real-time budget in this cgroup", cpu, err)
		return
	}
	ready <- nil
	for {
		pause(between(random, 30*time.Millisecond, 300*time.Millisecond))
		length := between(random, time.Millisecond, 8*time.Millisecond)
		if random.IntN(50) == 0 {
			length = 40 * time.Millisecond
		}
		burn(length)
	}
}

// hog burns and sleeps at ordinary priority.
func hog(random *rand.Rand) {
	runtime.LockOSThread()
	for {
		burn(between(random, 5*time.Millisecond, 200*time.Millisecond))
		pause(between(random, 0, 100*time.Millisecond))
	}
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// pause blocks the thread: a goroutine that sleeps is woken by a thread of ordinary priority.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	unix.Nanosleep(&t, nil)
}

func burn(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}
