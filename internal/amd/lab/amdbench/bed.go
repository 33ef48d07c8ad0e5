package amdbench

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// bed is a device with its queues, and what was seen so far.
type bed struct {
	*sim.Bench
	offline []sched.QueueID
	online  sched.QueueID
	rng     *rand.Rand
	calls   uint64
	each    int    // calls that stopping all takes, and starting
	opened  uint64 // updates that were made before the first request
	rounds  int
	seen    samples
}

// forever is more than any run lasts.
const forever = 1000 * time.Hour

// newBed makes n offline queues that are at work, and one online queue that is
// not, of a program of its own.
func newBed(m sim.Model, n int, c *Config) *bed {
	b := &bed{Bench: sim.NewBench(m, c.Seed), rng: rand.New(rand.NewPCG(c.Seed, uint64(n))), each: n}
	for i := range n {
		id := b.OpenIn(sched.ProcessID(1 + i%c.Programs))
		b.Submit(id, forever)
		b.offline = append(b.offline, id)
	}
	if m.Slots.Batch {
		b.each = min(n, c.Programs)
	}
	b.online = b.OpenIn(sched.ProcessID(1 + c.Programs))
	b.opened = b.Occupancy().Updates
	return b
}

func (b *bed) between(least, most time.Duration) time.Duration {
	return least + time.Duration(b.rng.Int64N(int64(most-least)+1))
}

// rest lets the offline queues work.
func (b *bed) rest() { b.Advance(b.between(restLeast, restMost)) }

// request makes one online request: its work comes, the offline queues are taken
// off, and when it is answered they are put back.
func (b *bed) request(way Way) error {
	came := b.Now()
	b.rounds++
	b.Submit(b.online, onlineWork)
	notice := b.between(noticeLeast, noticeMost)
	if way == Native {
		return b.await(came)
	}
	b.Advance(notice)
	stalled := b.Occupancy().Stalled
	unmap, err := b.change(sched.Stop)
	if err != nil {
		return err
	}
	if left := b.UpdatesDone() - b.Now(); left > 0 {
		b.Advance(left)
	}
	b.seen.unmap = append(b.seen.unmap, unmap)
	b.seen.own = append(b.seen.own, b.UpdatesDone()-came)
	b.seen.hiccup = append(b.seen.hiccup, b.Occupancy().Stalled-stalled)
	if err := b.await(came); err != nil {
		return err
	}
	remap, err := b.change(sched.Start)
	b.seen.remap = append(b.seen.remap, remap)
	return err
}

// change stops or starts all offline queues, and returns how long its caller
// was at it.
func (b *bed) change(verb sched.Verb) (time.Duration, error) {
	began := b.Now()
	b.calls += uint64(b.each)
	err := b.Call(verb, b.offline...)
	return b.Now() - began, err
}

// await waits for the answer to the request that came then.
func (b *bed) await(came time.Duration) error {
	if !b.Await(b.online, uint64(b.rounds), time.Minute) {
		return errors.New("a request had no answer for a minute")
	}
	b.seen.answer = append(b.seen.answer, b.LastCompletion(b.online)-came)
	return nil
}
