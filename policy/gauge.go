package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

const (
	// longPause is how many times the usual time between requests may pass until the next one.
	// After more, the process has paused, and what batch work got meanwhile says nothing about
	// the rung.
	longPause = 8

	// A context that was interrupted inside a kernel makes no progress for 40 us after the two
	// switches, which take 330 us (measured on an H200). So 1/refillPart of the time in which no
	// context was on the device is subtracted from what batch work gets.
	refillPart = 8
)

// gauge measures what batch work gets of the device.
//
// The hardware measures whose context was on the device, at work or not. For batch
// work that is more than its progress: see refillPart.
type gauge struct {
	// The last reading.
	at    sched.Time
	all   time.Duration // service of all measured queues
	batch time.Duration // service of batch and class-idle queues
	rung  int           // the rung in force
	since sched.Time    // ladder.since

	// Checksums of the queues on the device: of all, and of batch and class-idle queues.
	queues, batchQueues uint64

	// Since the last reading.
	finished float64       // requests
	openTime time.Duration // sum of their durations

	sinceRequest measurement // what was measured since a reading with requests
	pauses       meanTime    // time between two readings with requests
}

// measurement is what was measured in a period: its length, batch work's part of it, and the part
// in which no context was on the device.
type measurement struct{ wall, batch, lost time.Duration }

func (m *measurement) add(o measurement) {
	m.wall, m.batch, m.lost = m.wall+o.wall, m.batch+o.batch, m.lost+o.lost
}

// read adds to the current rung what was measured since the last reading. finished is the number
// of requests that have finished since the last call, and openTime the sum of their durations. The
// hardware is read less often than plans are made, so read keeps requests until the next reading. It
// adds a period without requests when the next request follows, unless the period was a pause. A
// period in which a queue came or went does not count.
func (g *gauge) read(v *sched.View, l *ladder, finished int, openTime time.Duration) {
	next := gauge{rung: l.current, since: l.since, finished: g.finished + float64(finished), openTime: g.openTime + openTime, pauses: g.pauses}
	l.measured = true
	anyBatch, used := false, next.finished > 0
	for i := range v.Queues {
		q := &v.Queues[i]
		batch := givesWay(q)
		next.queues = addToChecksum(next.queues, q)
		used = used || q.Attr.Class == sched.Online && q.OpenRequests > 0
		if q.Measured {
			next.at = max(next.at, q.MeasuredAt)
			next.all += q.Served
		}
		if batch {
			next.batch += q.Served
			next.batchQueues = addToChecksum(next.batchQueues, q)
			anyBatch = true
		}
		l.measured = l.measured && (q.Measured || !batch)
	}
	l.measured = l.measured && anyBatch
	if next.batchQueues != g.batchQueues {
		g.batchQueues = next.batchQueues
		l.forgetMeasurements()
	}
	old := *g
	same := old.queues == next.queues && old.rung == next.rung && old.since == next.since
	if !l.measured || same && next.at <= old.at {
		g.finished, g.openTime = next.finished, next.openTime
		return
	}
	*g = next
	g.finished, g.openTime = 0, 0
	wall := next.at.Sub(old.at)
	if !same || old.at < l.since || next.all < old.all || next.batch < old.batch {
		return // part of it was under another setting
	}
	lost := max(wall-(next.all-old.all), 0)
	m := measurement{wall, max(next.batch-old.batch-lost/refillPart, 0), lost}
	g.sinceRequest = old.sinceRequest
	if !used {
		g.sinceRequest.add(m)
		return
	}
	r := &l.rungs[l.current]
	r.add(m)
	if g.sinceRequest.wall <= probeTime/4 || g.sinceRequest.wall <= longPause*g.pauses.mean {
		r.add(g.sinceRequest)
	}
	g.pauses.add(g.sinceRequest.wall)
	g.sinceRequest = measurement{}
	r.requests += next.finished
	r.openTime += next.openTime
	if r.wall > 8*probeTime {
		r.wall, r.lost, r.batch, r.requests, r.openTime = r.wall/2, r.lost/2, r.batch/2, r.requests/2, r.openTime/2
	}
}
