package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// slo is giveway with a loop around it. Giveway has batch work give way as far as
// it can, which is often further than online work needs: a service that may take
// 10 ms and takes 3 leaves room for batch work to keep the device a while longer
// when it is asked to leave. How much room depends on the program: a request that
// is one dense piece of work pays for a batch slice once; one that launches its
// kernels one by one hardly pays, and batch work gets the gaps between them; and
// one that waits for each kernel pays every time, so much that nothing but keeping
// batch work off altogether will do. Nobody tells this policy which it is. It goes
// by how long requests take, and by what batch work gets, under each of a few
// settings: the ladder.
//
// An online queue without an SLO, or of which no request has been heard, is to be
// served as fast as can be, and then there is nothing to choose: giveway it is, until
// it has launched nothing for a while.
// When requests have ceased for a while batch work has the device's own slice, and
// online work too.
type slo struct {
	params
	base   *giveway
	quiet  time.Duration
	online time.Duration

	ladder  ladder
	device  sched.Device
	answers []answer // heard since the last plan
	askers  perQueue[asker]
	gauge   gauge
	heard   sched.Time    // when there last was a request
	calm    time.Duration // how long without one is quiet
	still   bool          // it is quiet
	woke    sched.Time    // when it last ceased to be, until the request it ceased with is answered
}

// asker is what slo knows of an online queue.
type asker struct {
	score  float64    // of requests that took too long, of late
	heard  bool       // it tells of its requests
	opened sched.Time // when the requests it has open were last seen to move
	open   uint32

	launched uint64     // commands, when last looked at
	worked   sched.Time // when it was last seen at work
}

type answer struct {
	queue sched.QueueID
	took  time.Duration
	at    sched.Time
}

const (
	mostAnswers = 4096 // kept between two plans: more are as good as these
	longestCalm = 10 * time.Minute
	longestHold = time.Second // for one request: well below the scheduler's StallLimit
)

func newSLO() sched.Policy {
	base := makeGiveway()
	p := &slo{base: base, quiet: 2 * time.Second}
	p.online = base.online
	for _, k := range base.params {
		switch k.name {
		case "slice", "bound", "online": // the ladder's affair
		default:
			p.params = append(p.params, k)
		}
	}
	p.params = append(p.params,
		sliceParam("online", &p.online, "time slice of online queues while there is batch or idle work on the device"),
		durationParam("quiet", &p.quiet, time.Millisecond, longestCalm, "how long without a request until batch work has the device's own slice again"))
	return p
}

// Observe implements sched.Observer: it takes note of requests.
func (p *slo) Observe(now sched.Time, ev *sched.Event) {
	switch {
	case ev.Kind == sched.RequestFinished && len(p.answers) < mostAnswers:
		p.answers = append(p.answers, answer{ev.Queue, ev.Duration, now})
	case ev.Kind == sched.QueueOpened && ev.Attr.Class == sched.Online:
		p.ladder.base, p.ladder.anew = p.ladder.start, true
		p.ladder.put(p.ladder.start, now)
		p.ladder.forget()
	case ev.Kind == sched.QueueOpened || ev.Kind == sched.QueueClosed:
		p.ladder.forget()
	}
}

// Plan implements sched.Policy.
func (p *slo) Plan(v *sched.View) sched.Plan {
	if dev := v.Devices[0]; dev != p.device || p.ladder.last == 0 {
		p.device = dev
		p.ladder.build(&dev)
	}
	askers := p.askers.update(v.Queues)
	if p.ladder.anew {
		p.ladder.anew = false
		for i := range askers {
			askers[i].score = 0
		}
	}
	answered := p.listen(v, askers)
	loose, strict := p.look(v, askers)
	wake := p.listenFor(v, loose && !strict)
	closed := loose && !strict && !p.still
	if closed {
		p.gauge.read(v, &p.ladder, answered)
		p.ladder.settle(v, p.base.current)
		if p.base.current != 0 {
			p.ladder.decide(v.Now)
		}
	}
	r := &p.ladder.rungs[p.ladder.start]
	set := setting{online: p.online}
	switch {
	case closed:
		r = &p.ladder.rungs[p.ladder.at]
	case p.still:
		r = &p.ladder.rungs[0]
		set.online = 0
	}
	set.slice, set.bound, set.noStops = r.slice, r.window, !r.hold
	plan := p.base.planWith(v, set)
	plan.Wake = earlier(plan.Wake, wake)
	if r.hold && p.device.Sliced() {
		p.keepOff(v, askers, &plan)
	}
	return plan
}

// look brings the askers up to date. It reports whether there is an online queue
// whose requests may take a while, and one that is to be as fast as can be.
func (p *slo) look(v *sched.View, askers []asker) (loose, strict bool) {
	for i := range v.Queues {
		q, w := &v.Queues[i], &askers[i]
		if q.Attr.Class != sched.Online || q.Attr.Paused {
			*w = asker{heard: w.heard}
			continue
		}
		if q.Ready() || q.Counters.Launched != w.launched {
			w.launched, w.worked = q.Counters.Launched, v.Now
		}
		if q.OpenRequests > 0 {
			w.heard = true
			p.heard = v.Now
		}
		if q.OpenRequests != w.open {
			w.open, w.opened = q.OpenRequests, v.Now
		}
		if q.Attr.SLO > 0 {
			loose = true
		}
		// One that launches nothing needs nothing, as long as that can be seen.
		asleep := q.Counters.Known && v.Now.Sub(w.worked) >= p.quiet
		if (q.Attr.SLO <= 0 || !w.heard) && !asleep {
			strict = true
		}
	}
	return loose, strict
}

// listen takes in how long requests took, and counts them.
func (p *slo) listen(v *sched.View, askers []asker) (answered int) {
	for _, a := range p.answers {
		i, ok := find(p.askers.ids, a.queue)
		if !ok || a.took < 0 {
			continue
		}
		q, w := &v.Queues[i], &askers[i]
		if q.Attr.Class != sched.Online || q.Attr.SLO <= 0 {
			continue
		}
		answered++
		w.heard = true
		began := a.at.Add(-a.took)
		if p.still || p.woke > 0 {
			// The first came upon batch work with the device's own slice.
			if a.took > q.Attr.SLO && (p.still || began <= p.woke.Add(time.Millisecond)) {
				p.calm = min(2*p.calm, longestCalm)
			}
			p.woke = 0
		}
		p.heard = max(p.heard, a.at)
		if p.base.current != 0 {
			p.ladder.request(began, a.took, q.Attr.SLO, &w.score)
		}
	}
	p.answers = p.answers[:0]
	return answered
}

// listenFor decides whether it is quiet and returns when it will be.
func (p *slo) listenFor(v *sched.View, mayBe bool) sched.Time {
	p.calm = max(p.calm, p.quiet)
	if !mayBe || p.heard == 0 {
		p.still = false
		return 0
	}
	was := p.still
	p.still = v.Now >= p.heard.Add(p.calm)
	if p.still {
		return 0
	}
	if was {
		p.woke = v.Now
		p.ladder.put(p.ladder.base, v.Now)
	}
	return p.heard.Add(p.calm)
}

// keepOff takes the device from batch and idle work while a request is under way.
// One that hangs, or whose end nobody told, does not keep it for ever.
func (p *slo) keepOff(v *sched.View, askers []asker, plan *sched.Plan) {
	until := sched.Time(0)
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Attr.Class == sched.Online && q.Attr.SLO > 0 && q.OpenRequests > 0 && !q.Attr.Paused {
			until = max(until, askers[i].opened.Add(min(q.Attr.SLO, longestHold/4)*4))
		}
	}
	if until <= v.Now {
		return
	}
	plan.Wake = earlier(plan.Wake, until)
	kept, next := p.base.grants[:0], 0
	for _, g := range plan.Grants {
		for next < len(v.Queues) && v.Queues[next].ID != g.Queue {
			next++
		}
		if q := &v.Queues[next]; q.Attr.Class != sched.Batch && q.Attr.Class != sched.Idle || q.Level() == sched.LevelNone {
			kept = append(kept, g)
		}
	}
	plan.Grants = kept
}
