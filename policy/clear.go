package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// clearing measures how long it takes to clear the device. A request that is expected finds only
// one batch queue on the device, the one whose turn it is, with the minimum slice. The others
// are stopped shortly before, and started again when the request is over. How long before
// depends on how long the driver's calls take, which follow one another.
type clearing struct {
	wanted bool          // the device was to be clear at the last plan
	since  sched.Time    // when the calls began, if it is wanted; zero: they are over
	calls  int           // that were to be made then
	call   meanTime      // of one call
	slow   time.Duration // what nearly all calls take at most: see slowDecay
	at     sched.Time    // when the device was last clear
}

// slowDecay is how slowly clearing.slow falls: by 1/slowDecay of the distance to the mean at each
// clearing. It rises at once to what the slowest took. So the device is clear in time for 99 of 100
// requests if calls take 1 ms and an exponentially distributed 150 us more (TestClearLeadFitsSlowCalls).
// How the times of calls are distributed on a GPU has not been measured.
const slowDecay = 500

// maxReserve is how many times the mean the lead allows for a call.
const maxReserve = 2

// clearKept is for how long it counts that calls took longer than the device says. The times that were
// measured may keep the device from being cleared, and then no others are measured.
const clearKept = 30 * time.Second

// callsOfTurn is how many calls a change of turns takes.
const callsOfTurn = 3

// callsToClear returns how many calls it takes to clear the device: one for the slice of the queue
// whose turn it is, and one for each queue that runs side by side with it. If none does, the device is
// clear unless turns are changing, which takes callsOfTurn: the stop of one queue, the start and the
// slice of the next.
func (p *giveway) callsToClear(v *sched.View, states []queueState) int {
	if !p.sharing {
		return callsOfTurn
	}
	calls := 1
	for i := range v.Queues {
		if q, st := &v.Queues[i], &states[i]; st.sideBySide && !st.outsideGroup && q.ID != p.current && q.Level() != sched.LevelNone {
			calls++
		}
	}
	return calls
}

// measureClear learns how long it takes until only one batch queue is on the device.
func (p *giveway) measureClear(v *sched.View, states []queueState, sum *summary) {
	c := &p.clearing
	if !sum.wantClear || !p.sharing {
		c.wanted = false
		return
	}
	if !c.wanted {
		c.wanted, c.since, c.calls = true, v.Now, p.callsToClear(v, states)
		return
	}
	if c.since == 0 {
		return
	}
	for i := range v.Queues {
		if q := &v.Queues[i]; states[i].sideBySide && q.ID != p.current && q.State != sched.Stopped && q.Level() != sched.LevelNone || q.ID == p.current && q.Slice == 0 {
			return // it still has to be stopped, or has the turn and not yet its short slice
		}
	}
	call := v.Now.Sub(c.since) / time.Duration(c.calls)
	if stop := v.Devices[0].StopTime; c.call.n == 0 && stop > 0 {
		call = min(call, maxReserve*stop)
	}
	c.add(call)
	c.since, c.at = 0, v.Now
}

// add takes the mean time of the calls of one clearing into account. One that took longer than any
// reserve allows for was held up, for example because the daemon had no CPU. It counts for the mean,
// so that calls that always take longer from now on are noticed, but only as much as the reserve.
func (c *clearing) add(call time.Duration) {
	if most := maxReserve * c.call.mean; c.call.n > 0 && call > most {
		c.call.add(most)
		return
	}
	c.call.add(call)
	c.slow = max(c.slow-(c.slow-c.call.mean)/slowDecay, call)
}

// forget takes calls that took longer than the device says for unknown, if that is long ago.
func (c *clearing) forget(now sched.Time, stop time.Duration) {
	if now.Sub(c.at) > clearKept && c.call.mean > stop {
		c.call, c.slow = meanTime{}, 0
	}
}

// clearLead returns how long before a request the light queues must be stopped. The reserve is limited:
// a single call that takes very long must not stop batch work for long before all that follow.
func (p *giveway) clearLead(v *sched.View, states []queueState, lead time.Duration) time.Duration {
	c := &p.clearing
	c.forget(v.Now, v.Devices[0].StopTime)
	calls := time.Duration(p.callsToClear(v, states))
	if c.call.n == 0 {
		return lead + (calls-1)*v.Devices[0].StopTime/2
	}
	return max(lead, calls*min(max(c.slow, c.call.mean*9/8), maxReserve*c.call.mean))
}
