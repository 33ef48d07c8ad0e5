package bench

import (
	"testing"
	"time"
)

// TestRestsAndAdvances follows a client that reports late what had ended before it was
// stopped.
func TestRestsAndAdvances(t *testing.T) {
	cl := &client{}
	report := func(done int64) {
		cl.progress = append(cl.progress, timedProgress{Progress: Progress{Done: done}, read: time.Now()})
	}
	report(1)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() { // it works
		defer close(ended)
		for n := int64(2); ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(ms):
				cl.mu.Lock()
				report(n)
				cl.mu.Unlock()
			}
		}
	}()
	if !cl.advances(t.Context(), 10*time.Second) {
		t.Error("a client that works does not advance")
	}
	if cl.rests(t.Context(), time.Second, 1500*ms) {
		t.Error("a client that works rests")
	}
	close(stop)
	<-ended
	if !cl.rests(t.Context(), 20*ms, 10*time.Second) {
		t.Error("a client that does nothing does not rest")
	}
	if cl.advances(t.Context(), 20*ms) {
		t.Error("a client that does nothing advances")
	}
}
