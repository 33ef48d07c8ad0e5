package shimpage

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func ear(t testing.TB, b *StatusPage, pages ...*Page) *Doorbells {
	t.Helper()
	e, err := NewDoorbells(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	for _, p := range pages {
		if err := e.Add(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Remove(p) })
	}
	return e
}

// hang is longer than anything here may take.
const hang = 20 * time.Second

// TestNoRingIsLost: one side rings and waits for an answer, the other waits for a
// ring and answers, as fast as they can. A ring that is lost leaves both waiting.
func TestNoRingIsLost(t *testing.T) {
	p, b, program := pair(t)
	e := ear(t, b, p)
	const n = 3000
	answers := make(chan struct{})
	go func() {
		for range n {
			program.Hint(HintPriority, 1)
			<-answers
		}
	}()
	start := time.Now()
	for heard := 0; heard < n; {
		e.Wait(hang)
		p.AckDoorbell()
		p.Hints(func(Hint) {
			heard++
			answers <- struct{}{}
		})
		if time.Since(start) > hang {
			t.Fatalf("heard %d of %d", heard, n)
		}
	}
}

// TestOwnRing: so with rings of our own, from many at once.
func TestOwnRing(t *testing.T) {
	_, b, _ := pair(t)
	e := ear(t, b)
	var mu sync.Mutex
	posted, start := 0, time.Now()
	const n = 4000
	for range 4 {
		go func() {
			for range n / 4 {
				mu.Lock()
				posted++
				mu.Unlock()
				e.Wake()
			}
		}()
	}
	for taken := 0; taken < n; {
		e.Wait(hang)
		mu.Lock()
		taken += posted
		posted = 0
		mu.Unlock()
		if time.Since(start) > hang {
			t.Fatalf("took %d of %d", taken, n)
		}
	}
}

// TestEndlessRinging: who rings without end is not listened to any more, by its
// word in memory or by its bell; others are; and it is again when it stops.
func TestEndlessRinging(t *testing.T) {
	noisy, b, loud := pair(t)
	quiet, err := NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(quiet.Close)
	soft := enter(t, quiet, b)
	for name, ring := range map[string]func(){
		"word": func() { loud.page.bell.Add(1) },
		"bell": func() { _, _ = unix.Write(loud.bell, one[:]) },
	} {
		t.Run(name, func(t *testing.T) {
			e := ear(t, b, noisy, quiet)
			var stop atomic.Bool
			var ringing sync.WaitGroup
			ringing.Go(func() {
				for !stop.Load() {
					ring()
				}
			})
			defer ringing.Wait()
			defer stop.Store(true)
			begin, turns := time.Now(), 0
			for deaf := 0; deaf == 0; turns++ {
				e.Wait(time.Millisecond) // its word alone wakes nobody
				noisy.AckDoorbell()
				e.mu.Lock()
				deaf = e.deaf
				e.mu.Unlock()
				if time.Since(begin) > hang {
					t.Fatalf("it is listened to after %d rings", turns)
				}
			}
			// The other is heard all the same.
			soft.Hint(HintPriority, 1)
			heard := 0
			for heard == 0 {
				e.Wait(hang)
				quiet.AckDoorbell()
				quiet.Hints(func(Hint) { heard++ })
			}
			stop.Store(true)
			ringing.Wait()
			loud.Hint(HintPriority, 1)
			for heard = 0; heard == 0; {
				e.Wait(hang)
				noisy.AckDoorbell()
				noisy.Hints(func(Hint) { heard++ })
			}
		})
	}
}

// TestTimeout: an ear that nobody rings returns, and not before its time if that is
// before the first beat.
func TestTimeout(t *testing.T) {
	p, b, _ := pair(t)
	e := ear(t, b, p)
	for _, d := range []time.Duration{0, time.Microsecond, 300 * time.Microsecond, 20 * time.Millisecond} {
		begin := time.Now()
		e.Wait(d)
		if took := time.Since(begin); took < d {
			t.Errorf("waited %v of %v", took, d)
		}
	}
}

// TestBeat: an ear that may sleep for long wakes at each beat.
func TestBeat(t *testing.T) {
	b, err := NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	e, err := NewDoorbells(b)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 3 {
		e.Wait(time.Hour)
	}
}
