package daemon

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/stats"
)

// BenchmarkBesideAFlood measures how long the calls of one user and the turns of the loop
// take while another user, with 200 processes, gives orders on 100 connections at once. A
// file of /proc takes 20 us to read.
func BenchmarkBesideAFlood(b *testing.B) {
	s, backend := newSlowProc(), newFakeBackend(b.TempDir())
	d := newTestDaemon(backend)
	d.procs = delayed{s}
	ctx, stop := b.Context(), make(chan struct{})
	go func() { _ = d.Run(ctx) }()
	<-d.ready
	add := func(uid uint32, shell, n int) {
		s.add(proc.Process{PID: shell, Start: uint64(shell), UID: uid, GID: uid, Parent: 1})
		for i := range n {
			p := s.add(proc.Process{PID: shell + 1 + i, Start: uint64(shell + 1 + i), UID: uid, GID: uid, Parent: shell})
			if _, err := backend.offer(p); err != nil {
				b.Fatal(err)
			}
		}
	}
	add(alice, 10_000, 200)
	add(bob, 20_000, 2)
	var flood sync.WaitGroup
	for i := range 100 {
		flood.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					_, _ = d.Change(of(alice), 10_000, tree(fmt.Sprint("weight=", 1+(i+n)%100)))
					_ = d.Processes()
				}
			}
		})
	}
	took := make(map[string][]time.Duration)
	for b.Loop() {
		for name, call := range map[string]func(){
			"set":       func() { _, _ = d.Change(of(bob), 20_001, given("class=batch")) },
			"set-tree":  func() { _, _ = d.Change(of(bob), 20_000, tree("weight=3")) },
			"processes": func() { d.Processes() },
			"status":    func() { d.Status() },
			"turn":      func() { d.events.inLoop(func() {}) },
			"lock":      func() { d.allProcesses() },
		} {
			began := time.Now()
			call()
			took[name] = append(took[name], time.Since(began))
		}
		time.Sleep(20 * time.Millisecond) // below the rate of one user's orders
	}
	close(stop)
	flood.Wait()
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(stats.Quantile(all, 0.99).Seconds()*1e3, name+"-p99-ms")
	}
}

// delayed makes reading a table of processes take some time.
type delayed struct{ *slowProc }

func (p delayed) Process(pid int) (proc.Process, error) {
	time.Sleep(20 * time.Microsecond)
	return p.slowProc.Process(pid)
}

func (p delayed) Stat(pid int) (proc.Stat, error) {
	time.Sleep(20 * time.Microsecond)
	return p.slowProc.Stat(pid)
}
