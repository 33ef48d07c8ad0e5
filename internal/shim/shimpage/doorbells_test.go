package shimpage_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func newDoorbells(t testing.TB, s *shimpage.StatusPage, pages ...*shimpage.Page) *shimpage.Doorbells {
	t.Helper()
	d, err := shimpage.NewDoorbells(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	for _, p := range pages {
		if err := d.Add(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Remove(p) })
	}
	return d
}

// timeout is longer than anything here may take.
const timeout = 20 * time.Second

// TestNoRingIsLost lets the process give a hint and wait for the answer, and the daemon wait
// for the hint and answer, as fast as they can. If a ring were lost both would wait.
func TestNoRingIsLost(t *testing.T) {
	p, s, process := newPair(t)
	d := newDoorbells(t, s, p)
	const n = 3000
	answers := make(chan struct{})
	go func() {
		for range n {
			process.Hint(shimpage.HintPriority, 1)
			<-answers
		}
	}()
	start := time.Now()
	for got := 0; got < n; {
		d.Wait(timeout)
		p.AckDoorbell()
		p.Hints(func(shimpage.Hint) {
			got++
			answers <- struct{}{}
		})
		if time.Since(start) > timeout {
			t.Fatalf("got %d hints, want %d", got, n)
		}
	}
}

// TestNoWakeIsLost does the same with Wake from several goroutines.
func TestNoWakeIsLost(t *testing.T) {
	_, s, _ := newPair(t)
	d := newDoorbells(t, s)
	var mu sync.Mutex
	posted, start := 0, time.Now()
	const n = 4000
	for range 4 {
		go func() {
			for range n / 4 {
				mu.Lock()
				posted++
				mu.Unlock()
				d.Wake()
			}
		}()
	}
	for got := 0; got < n; {
		d.Wait(timeout)
		mu.Lock()
		got += posted
		posted = 0
		mu.Unlock()
		if time.Since(start) > timeout {
			t.Fatalf("got %d events, want %d", got, n)
		}
	}
}

// TestEndlessRingingIsMuted lets one process ring without end, by its doorbell word or its
// eventfd. It is muted, the other process is still noticed, and so is the first when it
// stops.
func TestEndlessRingingIsMuted(t *testing.T) {
	noisy, s, noisyProcess := newPair(t)
	quiet := newPage(t)
	quietProcess := newProcess(t, quiet, s)
	for name, ring := range map[string]func(){
		"word":    func() { noisyProcess.Page.Doorbell.Add(1) },
		"eventfd": func() { pageabi.Ring(noisyProcess.Doorbell) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoorbells(t, s, noisy, quiet)
			var stop atomic.Bool
			var ringing sync.WaitGroup
			ringing.Go(func() {
				for !stop.Load() {
					ring()
				}
			})
			defer ringing.Wait()
			defer stop.Store(true)
			begin := time.Now()
			for waits := 0; d.Muted() == 0; waits++ {
				ring()                   // also while the goroutine gets no CPU
				d.Wait(time.Millisecond) // the word alone wakes no sleeper
				noisy.AckDoorbell()
				if time.Since(begin) > timeout {
					t.Fatalf("not muted after %d waits", waits)
				}
			}
			waitForHint := func(p *shimpage.Page) {
				for got := 0; got == 0; {
					d.Wait(timeout)
					p.AckDoorbell()
					p.Hints(func(shimpage.Hint) { got++ })
				}
			}
			quietProcess.Hint(shimpage.HintPriority, 1)
			waitForHint(quiet)
			stop.Store(true)
			ringing.Wait()
			noisyProcess.Hint(shimpage.HintPriority, 1)
			waitForHint(noisy)
		})
	}
}

func TestWaitTakesItsTimeout(t *testing.T) {
	p, s, _ := newPair(t)
	d := newDoorbells(t, s, p)
	// All shorter than maxSleep, whose periodic timer could end a wait early.
	for _, want := range []time.Duration{0, time.Microsecond, 300 * time.Microsecond, 20 * time.Millisecond} {
		begin := time.Now()
		d.Wait(want)
		if took := time.Since(begin); took < want {
			t.Errorf("waited %v, want %v", took, want)
		}
	}
}

// TestLongWaitReturns hangs if Wait sleeps longer than maxSleep.
func TestLongWaitReturns(t *testing.T) {
	_, s, _ := newPair(t)
	d := newDoorbells(t, s)
	for range 3 {
		d.Wait(time.Hour)
	}
}
