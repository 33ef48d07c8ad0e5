package shimpage_test

import (
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestCloseWakesAllThreads: no thread that waits at the gate of a page that is closed waits for the end of the
// lease, also if there are more than are woken at once.
func TestCloseWakesAllThreads(t *testing.T) {
	s, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	process := newProcess(t, p, s)
	p.Hold(time.Minute)
	const threads, limit = 200, 30 * time.Second
	var waiting, ended sync.WaitGroup
	waiting.Add(threads)
	for range threads {
		ended.Go(func() {
			waiting.Done()
			for process.Page.Gate.Load() == pageabi.GateClosed {
				pageabi.Wait(&process.Page.Gate, pageabi.GateClosed, limit)
			}
		})
	}
	waiting.Wait()
	time.Sleep(100 * time.Millisecond) // most of them wait now
	began := time.Now()
	p.Close()
	if ended.Wait(); time.Since(began) > limit/2 {
		t.Errorf("the last thread went on %v after the page was closed", time.Since(began))
	}
}
