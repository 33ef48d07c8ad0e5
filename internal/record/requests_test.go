package record

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// TestRequestOfAClosedQueue checks that a request that is open when its queue closes is over
// for the account, and that the wait until then counts.
func TestRequestOfAClosedQueue(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.Open(0, 3, "d", 1, &sched.Attr{Class: sched.Online})
	a.RequestStarted(1*ms, 1)
	a.RequestFinished(2*ms, 1, time.Millisecond, 2*ms) // it reports requests
	a.RequestStarted(100*ms, 3)
	spansTo(a, 0, 200*ms, nil, 2)
	a.Close(200*ms, 3)
	spansTo(a, 200*ms, 1000*ms, nil, 2)
	if got := totalOf(a, 1); got != 101*time.Millisecond {
		t.Errorf("waited for %v, want 101ms", got)
	}
}

// TestRequestOfUnknownLength checks that a request of which only begin and end events are
// known counts, and that a queue that opens in the middle of it does not end it.
func TestRequestOfUnknownLength(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.RequestFinished(2*ms, 1, time.Millisecond, 2*ms)
	a.RequestStarted(100*ms, 1)
	a.Open(150*ms, 3, "d", 1, &sched.Attr{Class: sched.Online})
	spansTo(a, 0, 160*ms, nil, 2)
	a.RequestFinished(160*ms, 3, 0, 0)
	spansTo(a, 160*ms, 200*ms, nil, 2)
	a.RequestFinished(200*ms, 1, 0, 0)
	spansTo(a, 200*ms, 1000*ms, nil, 2)
	if got := totalOf(a, 1); got != 101*time.Millisecond {
		t.Errorf("waited for %v, want 101ms", got)
	}
}

// TestProcessStopsToReportRequests checks that the counters tell again when a process has
// work: at once if it is no longer online, and after some time without a request.
func TestProcessStopsToReportRequests(t *testing.T) {
	for name, test := range map[string]struct {
		attr sched.Attr
		want sched.Time
	}{
		"class": {sched.Attr{Class: sched.Batch}, 7000 * ms},
		"time":  {sched.Attr{Class: sched.Online, SLO: time.Second}, 2500 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			a := twoClients(true, new([]Entry))
			a.RequestFinished(2*ms, 1, time.Millisecond, 2*ms)
			a.Attrs(3*ms, 1, &test.attr)
			a.Progress(3*ms, 1, &sched.Counters{Submitted: 1, Known: true})
			spansTo(a, 0, 8000*ms, nil, 2)
			if got := totalOf(a, 1); got < time.Duration(test.want) {
				t.Errorf("waited for %v, want more than %v", got, time.Duration(test.want))
			}
		})
	}
}

// TestLongWaitIsOne checks that a wait of a second is recorded as one, however it ends.
func TestLongWaitIsOne(t *testing.T) {
	const end = 1000 * ms
	for name, stop := range map[string]func(*Accounts){
		"device":  func(a *Accounts) { spansTo(a, end, end+500*ms, nil, 1) },
		"no work": func(a *Accounts) { a.Progress(end, 1, &sched.Counters{Known: true}) },
		"closed":  func(a *Accounts) { a.Close(end, 1) },
		"hole":    func(a *Accounts) { a.Span(end+500*ms, "d", &hal.Span{Begin: end, End: end + 500*ms}) },
	} {
		t.Run(name, func(t *testing.T) {
			var waits []Entry
			a := twoClients(true, &waits)
			a.Progress(0, 1, &sched.Counters{Submitted: 1, Known: true})
			spansTo(a, 0, end, nil, 2)
			if stop(a); name != "device" && name != "hole" {
				spansTo(a, end, end+500*ms, nil, 2)
			}
			a.Update(end+2*sched.Time(accountLag), nil)
			if len(waits) != 1 || waits[0].Begin != 0 || waits[0].End != end || waits[0].Holder != 2 || waits[0].Cost != time.Second {
				t.Errorf("got %d waits: %+v", len(waits), waits)
			}
		})
	}
}

// TestWaitEndsWithTheClass checks that the wait up to a change of class is recorded, and one
// up to the end of the trace.
func TestWaitEndsWithTheClass(t *testing.T) {
	for name, stop := range map[string]func(*Accounts){
		"class": func(a *Accounts) { a.Attrs(1000*ms, 1, &sched.Attr{Class: sched.Batch}) },
		"trace": func(a *Accounts) {
			a.devices[0].tracing = func() bool { return false }
			a.Update(1200*ms, func() []sched.Queue { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var waits []Entry
			a := twoClients(true, &waits)
			a.Progress(0, 1, &sched.Counters{Submitted: 1, Known: true})
			spansTo(a, 0, 1000*ms, nil, 2)
			stop(a)
			if len(waits) != 1 || waits[0].Begin != 0 || waits[0].End < 600*ms || waits[0].End > 1000*ms {
				t.Errorf("got %+v", waits)
			}
		})
	}
}

// TestClosedClientIsAccountedFor checks that the last moments of a process count, with the
// class of the holder that is gone, and that a new process with its pid is another client.
func TestClosedClientIsAccountedFor(t *testing.T) {
	var waits []Entry
	a := twoClients(true, &waits)
	a.Progress(0, 1, &sched.Counters{Submitted: 1, Known: true})
	spansTo(a, 0, 100*ms, nil, 2)
	a.Close(100*ms, 2)
	a.Close(100*ms, 1)
	a.Open(100*ms, 11, "d", 1, &sched.Attr{Class: sched.Batch})
	spansTo(a, 100*ms, 1000*ms, nil, 3)
	if got := totalOf(a, 1); got != 0 {
		t.Errorf("the new process waited for %v", got)
	}
	if p := a.Pressure().Processes; len(p) != 1 || p[0].Some.Total != 0 {
		t.Errorf("got pressure %+v", p)
	}
	classes := a.Delays().Classes
	if len(classes) != 1 || classes[0].Class != "online" || classes[0].Holder != "batch" || classes[0].Total != 100*time.Millisecond {
		t.Errorf("got %+v, want that online work waited 100ms for batch", classes)
	}
	if len(waits) != 1 || waits[0].End != 100*ms {
		t.Errorf("got waits %+v", waits)
	}
	if d := a.devices[0]; len(d.clients) != 1 || len(a.processes) != 1 || len(a.queues) != 1 {
		t.Errorf("kept %d clients, %d processes, %d queues", len(d.clients), len(a.processes), len(a.queues))
	}
}
