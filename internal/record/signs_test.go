package record

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// spansTo reports spans of 10 ms up to a time as a backend does, and updates the account every
// 10 ms until the spans are accounted for. queues has the records.
func spansTo(a *Accounts, from, to sched.Time, queues func() []sched.Queue, pids ...int) {
	for now, i := from, 0; now < to; now, i = now+10*ms, i+1 {
		a.Span(now+10*ms, "d", &hal.Span{Begin: now, End: now + 10*ms, PID: pids[i%len(pids)], Kind: hal.SpanHeld, Left: hal.Preempted})
		a.Update(now+10*ms, queues)
	}
}

func totalOf(a *Accounts, pid int) (sum time.Duration) {
	for _, c := range a.Delays().Delays {
		if c.PID == pid {
			sum += c.Total
		}
	}
	return sum
}

func roughly(got time.Duration, want sched.Time) bool {
	return (got - time.Duration(want)).Abs() <= max(time.Duration(want/20), 2*time.Millisecond)
}

// TestPressureOnTwoDevices checks the pressure of a process that waits all the time on one
// device and half of the time on another, and for the first 20 s only.
func TestPressureOnTwoDevices(t *testing.T) {
	a := NewAccounts(func(*Entry) {})
	for i, id := range []sched.DeviceID{"d0", "d1"} {
		a.Device(0, id, i, func() bool { return false })
		a.Open(0, sched.QueueID(1+i), id, 1, &sched.Attr{Class: sched.Batch})
	}
	ready := func(now sched.Time, id sched.QueueID, yes bool) {
		c := sched.Counters{Submitted: 1, Completed: 1, Known: true}
		if yes {
			c.Submitted++
		}
		a.Progress(now, id, &c)
	}
	none := func() []sched.Queue { return nil }
	for now := sched.Time(0); now < 40_000*ms; now += 100 * ms {
		ready(now, 1, now < 20_000*ms)
		ready(now, 2, now < 20_000*ms && now%(200*ms) == 0)
		a.Update(now, none)
	}
	p := a.Pressure().Processes[0]
	if !roughly(p.Some.Total, 20_000*ms) || !roughly(p.Full.Total, 10_000*ms) || p.Some.Avg10 > 20 {
		t.Errorf("got some %+v, full %+v; want totals of 20 s and 10 s", p.Some, p.Full)
	}
	if sum := totalOf(a, 1); !roughly(sum, 30_000*ms) {
		t.Errorf("got delays of %v, want 30 s", sum)
	}
}

// TestFullAcrossWindows checks that the least of two devices is of the whole update, and not
// of the part of it before or after a bucket ends.
func TestFullAcrossWindows(t *testing.T) {
	a := NewAccounts(func(*Entry) {})
	for i, id := range []sched.DeviceID{"d0", "d1"} {
		a.Device(0, id, i, func() bool { return false })
		a.Open(0, sched.QueueID(1+i), id, 1, &sched.Attr{Class: sched.Batch})
		a.Progress(0, sched.QueueID(1+i), &sched.Counters{Submitted: 1, Known: true})
	}
	a.Update(5050*ms, func() []sched.Queue { return nil })
	if p := a.Pressure().Processes[0]; p.Full.Total != 5050*time.Millisecond {
		t.Errorf("got full %v, want all the time", p.Full)
	}
}

// TestIdleProcessWithoutCounters checks that a process that was preempted does not wait
// without end if the trace has a hole or the scheduler says that it has no work.
func TestIdleProcessWithoutCounters(t *testing.T) {
	for name, sign := range map[string]func(a *Accounts){
		"hole":    func(a *Accounts) { a.Span(100*ms, "d", &hal.Span{Begin: 50 * ms, End: 100 * ms}) },
		"no work": func(a *Accounts) { a.Decided(50*ms, 2, sched.NoWork) },
	} {
		t.Run(name, func(t *testing.T) {
			a := twoClients(true, new([]Entry))
			spansTo(a, 0, 10*ms, nil, 2)
			if name == "no work" {
				spansTo(a, 10*ms, 50*ms, nil, 1)
				sign(a)
				spansTo(a, 50*ms, 100*ms, nil, 1)
			} else {
				spansTo(a, 10*ms, 50*ms, nil, 1)
				sign(a)
			}
			spansTo(a, 100*ms, 2000*ms, nil, 1)
			a.Update(2000*ms+sched.Time(accountLag), nil)
			if got := totalOf(a, 2); got != 40*time.Millisecond {
				t.Errorf("waited for %v, want 40ms", got)
			}
			a.Decided(2300*ms, 2, sched.ItsTurn)
			spansTo(a, 2000*ms, 4000*ms, nil, 2, 1)
			if got := totalOf(a, 2); got < 500*time.Millisecond {
				t.Errorf("waited for %v after it has work again", got)
			}
		})
	}
}

// TestLateSpanOfAnIdleProcess checks that a span that is reported after the scheduler found no
// work does not begin a wait.
func TestLateSpanOfAnIdleProcess(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.Decided(5*ms, 2, sched.NoWork)
	spansTo(a, 0, 10*ms, nil, 2)
	spansTo(a, 10*ms, 2000*ms, nil, 1)
	if got := totalOf(a, 2); got != 0 {
		t.Errorf("waited for %v", got)
	}
}

// TestEstimateAfterAQueueCloses checks that a process on a device without a trace that closes
// one of two queues still counts as served.
func TestEstimateAfterAQueueCloses(t *testing.T) {
	a := twoClients(false, new([]Entry))
	a.Open(0, 3, "d", 2, &sched.Attr{Class: sched.Batch})
	for id := sched.QueueID(2); id <= 3; id++ {
		a.Progress(0, id, &sched.Counters{Submitted: 1, Known: true})
	}
	records := []sched.Queue{{ID: 1}, {ID: 2}, {ID: 3}}
	for now := sched.Time(0); now <= 4000*ms; now += 100 * ms {
		if now == 2000*ms {
			a.Close(now, 3)
			records = records[:2]
		}
		for i := range records[1:] {
			records[1+i].Served += 100 * time.Millisecond / time.Duration(len(records)-1)
		}
		a.Update(now, func() []sched.Queue { return records })
	}
	if got := totalOf(a, 2); got > 100*time.Millisecond {
		t.Errorf("a process that is served all the time waited for %v", got)
	}
}

// TestEstimateAfterATrace checks that what was served while a device was traced does not count
// once its time is estimated, and that a process without counters does not wait then.
func TestEstimateAfterATrace(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.Open(0, 3, "d", 3, &sched.Attr{Class: sched.Batch})
	tracing := true
	a.devices[0].tracing = func() bool { return tracing }
	a.Progress(0, 1, &sched.Counters{Submitted: 1, Known: true})
	spansTo(a, 0, 4000*ms, nil, 3, 2) // both are preempted
	tracing = false
	before, idle := totalOf(a, 1), totalOf(a, 3)
	for now := 4010 * ms; now <= 5010*ms; now += 100 * ms {
		records := []sched.Queue{{ID: 1, Served: 3 * time.Second}, {ID: 2, Served: time.Duration(now)}, {ID: 3, Served: time.Second}}
		a.Update(now, func() []sched.Queue { return records })
	}
	if got := delayOf(a, 1, api.Holder{Kind: "idle"}); got.Total != 0 {
		t.Errorf("got %+v while process 2 had the device", got)
	}
	if got := totalOf(a, 1) - before; !roughly(got, 1000*ms) && !roughly(got, 900*ms) {
		t.Errorf("waited for %v in a second without device time", got)
	}
	if got := totalOf(a, 3) - idle; got > sched.Time(accountLag).Sub(0) {
		t.Errorf("a process of which nothing is known waited for %v", got)
	}
}

// TestQueueWithWorkCloses checks that a process does not wait any more when its only queue that
// may have work closes.
func TestQueueWithWorkCloses(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.Open(0, 3, "d", 2, &sched.Attr{Class: sched.Batch})
	a.Decided(0, 3, sched.NoWork)
	spansTo(a, 0, 10*ms, nil, 2)
	spansTo(a, 10*ms, 50*ms, nil, 1)
	a.Close(50*ms, 2)
	spansTo(a, 50*ms, 1000*ms, nil, 1)
	if got := totalOf(a, 2); got != 40*time.Millisecond {
		t.Errorf("waited for %v, want 40ms", got)
	}
}

// TestLostCounters checks that a process whose counters are not known any more, because its
// gate was withdrawn, does not wait without end: from then on it waits as a process without
// counters does, and that is an estimate.
func TestLostCounters(t *testing.T) {
	a := twoClients(true, new([]Entry))
	a.Progress(0, 2, &sched.Counters{Submitted: 1, Known: true})
	spansTo(a, 0, 1000*ms, nil, 1)
	a.Progress(1000*ms, 2, &sched.Counters{Submitted: 2})
	a.Progress(1000*ms, 2, &sched.Counters{Submitted: 2}) // again: nothing is lost twice
	spansTo(a, 1000*ms, 3000*ms, nil, 1)
	waited := totalOf(a, 2)
	if waited < 500*time.Millisecond || waited > time.Second {
		t.Errorf("waited for %v, want up to 1s", waited)
	}
	spansTo(a, 3000*ms, 5000*ms, nil, 2, 1)
	if more := totalOf(a, 2) - waited; more < 500*time.Millisecond {
		t.Errorf("waited for %v after it was preempted again", more)
	}
	if d := delayOf(a, 2, process(1)); !d.Estimated {
		t.Errorf("got %+v, want an estimate", d)
	}
	a.Progress(5000*ms, 2, &sched.Counters{Submitted: 2, Completed: 2, Known: true}) // a new gate
	spansTo(a, 5000*ms, 5400*ms, nil, 1)
	waited = totalOf(a, 2)
	if spansTo(a, 5400*ms, 7000*ms, nil, 1); totalOf(a, 2) != waited {
		t.Errorf("waited for %v without work", totalOf(a, 2)-waited)
	}
}
