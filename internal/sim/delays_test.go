package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// delayTruth compares the account of delays with what the simulator knows. The account gets
// what a daemon gets: spans every few milliseconds, requests when they are over, counters at
// each poll. The truth looks at every queue in steps of 5 us.
type delayTruth struct {
	t        *testing.T
	node     *sim.Node
	accounts *record.Accounts
	waits    time.Duration // of the recorded waits of queue 1

	spans  []hal.Span
	queues []sched.QueueID
	ready  []uint64 // by step: a bit for each queue
	polled sched.Time
}

const truthStep = 5 * us

func newDelayTruth(t *testing.T, n *sim.Node) *delayTruth {
	d := &delayTruth{t: t, node: n}
	d.accounts = record.NewAccounts(func(e *record.Entry) { d.waits += e.End.Sub(e.Begin) })
	d.accounts.Device(0, "gpu0", 0, func() bool { return true })
	return d
}

// step advances the Node by a step.
func (d *delayTruth) step(poll time.Duration) {
	now := d.node.Now().Add(truthStep)
	d.node.AdvanceTo(now)
	for _, ev := range d.node.Events(nil) {
		q := d.node.Queue(ev.Queue)
		switch {
		case ev.Kind == sched.QueueOpened:
			q.SetPID(int(ev.Queue))
			d.queues = append(d.queues, ev.Queue)
			d.accounts.Open(now, ev.Queue, "gpu0", int32(ev.Queue), &q.Client.Attr)
		case ev.Kind == sched.RequestFinished && !q.Saturating:
			d.accounts.RequestFinished(now, ev.Queue, ev.Duration, ev.At)
		}
	}
	var ready uint64
	for i, id := range d.queues {
		if c := d.node.Queue(id).Counters(); c.Submitted > c.Completed {
			ready |= 1 << i
		}
	}
	d.ready = append(d.ready, ready)
	if now.Sub(d.polled) < poll {
		return
	}
	d.polled = now
	for _, id := range d.queues {
		c := d.node.Queue(id).Counters()
		d.accounts.Progress(now, id, &c)
	}
	d.readSpans(now)
	d.accounts.Update(now, func() []sched.Queue { d.t.Fatal("the device is traced"); return nil })
}

func (d *delayTruth) readSpans(now sched.Time) {
	d.node.DeviceTimes(nil)
	for _, s := range d.node.Spans(0, nil) {
		d.spans = append(d.spans, s)
		d.accounts.Span(now, "gpu0", &s)
	}
}

// truth returns for each queue and holder how long the queue waited, and how long any queue
// waited, and waited while no process held the device.
func (d *delayTruth) truth() (delays map[[2]int]time.Duration, some, full time.Duration) {
	delays = map[[2]int]time.Duration{}
	at := 0
	for i, ready := range d.ready {
		now := sched.Time(truthStep) * sched.Time(i+1) // as at the beginning of a step, so in all of it
		for at < len(d.spans) && d.spans[at].End <= now+sched.Time(truthStep)/2 {
			at++
		}
		if at == len(d.spans) {
			break
		}
		s, any := &d.spans[at], false
		holder := holderIn(s)
		for j := range d.queues {
			if id := int(d.queues[j]); ready&(1<<j) != 0 && id != holder {
				delays[[2]int{id, holder}] += truthStep
				any = true
			}
		}
		if any {
			some += truthStep
			if holder < 0 {
				full += truthStep
			}
		}
	}
	return delays, some, full
}

// holderIn returns the pid that held the device in a span, -1 for a switch and -2 for none.
func holderIn(s *hal.Span) int {
	switch s.Kind {
	case hal.SpanHeld:
		return s.PID
	case hal.SpanSwitch:
		return -1
	}
	return -2
}

// nearTruth reports whether two times differ by at most a percent, or by half a step for
// each request, by which the truth is not exact.
func nearTruth(got, want time.Duration) bool {
	return (got - want).Abs() <= max(want/100, 2*ms)
}

// TestDelaysAreTheTruth checks on random Nodes that the delays, their sums and the pressure
// agree with what the simulator knows, within 1 %.
func TestDelaysAreTheTruth(t *testing.T) {
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 23))
		// Poisson: arrivals that are all at the same place in a step would make the truth wrong.
		lc := open(time.Duration(4+rnd.IntN(9))*ms, sim.Kernels{Count: 1 + rnd.IntN(2), Time: sim.Always(time.Duration(300+rnd.IntN(500)) * us)})
		lc.Shim = true
		clients := []sim.ClientConfig{lc}
		for i := range 1 + rnd.IntN(3) {
			c := flatOut(i, time.Duration(200+rnd.IntN(3000))*us, 2)
			c.Shim = true
			clients = append(clients, c)
		}
		n := node(t, clients...)
		d := newDelayTruth(t, n)
		poll := time.Duration(1+rnd.IntN(20)) * ms
		for n.Now() < sched.Time(3*time.Second) {
			if rnd.IntN(8000) == 0 && len(clients) > 2 {
				id := sched.QueueID(2 + rnd.IntN(len(clients)-1))
				if rnd.IntN(2) == 0 {
					_ = n.Apply(sched.Action{Queue: id, Verb: sched.Stop, Level: sched.LevelInterrupt}) // it may be stopped already
				} else if q := n.Queue(id); q != nil {
					_ = q.Restore()
				}
			}
			d.step(poll)
		}
		d.readSpans(n.Now())
		d.accounts.Update(n.Now().Add(time.Second), nil)
		d.compare(seed)
	}
}

func (d *delayTruth) compare(seed uint64) {
	want, some, full := d.truth()
	got, sums, wantSums := map[[2]int]time.Duration{}, map[int]time.Duration{}, map[int]time.Duration{}
	for _, c := range d.accounts.Delays().Delays {
		holder := map[string]int{"process": c.Holder.PID, "switch": -1, "idle": -2}[c.Holder.Kind]
		got[[2]int{c.PID, holder}] += c.Total
		sums[c.PID] += c.Total
		if c.Estimated {
			d.t.Errorf("seed %d: %+v is marked as estimated", seed, c)
		}
	}
	for pair, w := range want {
		wantSums[pair[0]] += w
		if !nearTruth(got[pair], w) {
			d.t.Errorf("seed %d: %d delayed by %d: got %v, want %v", seed, pair[0], pair[1], got[pair], w)
		}
	}
	p := d.accounts.Pressure()
	for _, proc := range p.Processes {
		if !nearTruth(sums[proc.PID], wantSums[proc.PID]) || sums[proc.PID] != proc.Some.Total || proc.Full != proc.Some {
			d.t.Errorf("seed %d: process %d: delays of %v, pressure %v, waited %v", seed, proc.PID, sums[proc.PID], proc.Some, wantSums[proc.PID])
		}
	}
	if dev := p.Devices[0]; !nearTruth(dev.Some.Total, some) || !nearTruth(dev.Full.Total, full) || dev.Estimated {
		d.t.Errorf("seed %d: pressure %+v, want %v and %v", seed, dev, some, full)
	}
	if sums[1] == 0 || !nearTruth(d.waits, sums[1]) {
		d.t.Errorf("seed %d: waits of %v are recorded, and the delays are %v", seed, d.waits, sums[1])
	}
	var classes time.Duration
	for _, c := range d.accounts.Delays().Classes {
		classes += c.Total
	}
	if total := sum(sums); classes != total {
		d.t.Errorf("seed %d: %v by class, %v in all", seed, classes, total)
	}
}

func sum(all map[int]time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}
