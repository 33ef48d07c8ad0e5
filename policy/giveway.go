package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// giveway is the default policy. Online queues are never stopped. Batch queues
// take turns, one at a time on a device, by weight, and give way to online work:
//
//   - On a device with time slices the batch queue whose turn it is holds the
//     least slice, so the hardware itself leaves it the moment online work is
//     ready. Nothing is called for a request. One at a time because a round of
//     N batch queues costs an online request N switches, and because two ready
//     queues at the least slice livelock. Online queues have a slice longer than
//     their requests, or each time it is up they are left for nothing: two
//     switches and a moment in which the batch queue makes no progress.
//   - Elsewhere, and where the slice of a queue cannot be set, batch queues are
//     stopped while online work is ready or about to be, and kept to a small
//     window of commands in flight otherwise.
//
// Standard queues are left as the vendor has them. An idle queue runs when no
// other is ready, but for the moment it takes to leave an online one the device.
// Starvation is the scheduler's affair: its floor.
type giveway struct {
	knobs
	planner
	foresight
	turn   time.Duration
	slice  time.Duration
	online time.Duration
	window int
	linger time.Duration

	accounts ledger[tally]
	clocks   [2]vclock     // of batch and idle queues
	current  sched.QueueID // whose turn it is
	since    sched.Time    // when its turn began
	rest     sched.Time    // idle queues found the device busy, and are stopped until then
	serving  bool          // online work was ready when last looked at
	until    sched.Time    // online work may be back before this
	stays    bool          // batch work runs on beside online work where there are no slices
}

// idleRest is how many turns idle queues stay away from a device that was busy.
const idleRest = 20

// tally is what giveway knows of a queue.
type tally struct {
	vtime
	served time.Duration // Queue.Served when last looked at
	atTurn time.Duration // Queue.Served when the turn under way began
	known  bool
	class  sched.Class
	idler  bool // let a turn pass unused: out of the rotation until it is served again
	works  bool // is one of those that take turns, and would use it
}

func newGiveway() sched.Policy {
	p := &giveway{
		turn: 50 * time.Millisecond, slice: sched.MinSlice, online: 20 * time.Millisecond, window: 4, linger: 200 * time.Microsecond,
	}
	p.knobs = append(knobs{
		durationKnob("turn", &p.turn, time.Millisecond, 10*time.Second, "how long a batch queue runs before the next"),
		sliceKnob("slice", &p.slice, "time slice of the running batch queue while there is online work on the device"),
		sliceKnob("online", &p.online, "time slice of online queues while there is batch or idle work on the device: a request that takes longer is switched away from"),
		intKnob("bound", &p.window, 1, 1<<16, "commands in flight of a batch queue, where they can be bounded and there are no slices"),
		durationKnob("linger", &p.linger, 0, time.Second, "how long after online work to keep batch work off, where there are no slices"),
	}, p.foresight.knobs()...)
	return p
}

// outlook is what there is to know of a device before anything is granted.
type outlook struct {
	online bool        // there is an online queue
	rest   bool        // there is a batch or idle queue
	busy   bool        // online work is ready, was a moment ago, or is due
	others bool        // a standard or batch queue is ready
	mine   int         // place of the queue whose turn it is, or -1
	rivals int         // queues that take turns
	class  sched.Class // of those
	wake   sched.Time  // when the turn is over
	clear  sched.Time  // when busy changes by itself
}

// Plan implements sched.Policy.
func (p *giveway) Plan(v *sched.View) sched.Plan {
	dev := &v.Devices[0]
	t := p.accounts.update(v.Queues)
	o := p.survey(v, t)
	p.rotate(v, t, &o)
	p.begin()
	for i := range v.Queues {
		q := &v.Queues[i]
		switch q.Attr.Class {
		case sched.Batch, sched.Idle:
			p.grantRest(v.Now, dev, q, &t[i], &o)
		case sched.Online:
			g := sched.Grant{Queue: q.ID}
			if o.rest && p.online > 0 && yieldsBySlice(dev, q) {
				g.Slice = max(p.online, dev.MinSharedSlice)
			}
			p.grants = append(p.grants, g)
		default:
			p.grant(q)
		}
	}
	return p.plan(o.wake)
}

// grantRest grants the device to a batch or idle queue if it may have it.
func (p *giveway) grantRest(now sched.Time, dev *sched.Device, q *sched.Queue, t *tally, o *outlook) {
	g := sched.Grant{Queue: q.ID}
	idle := q.Attr.Class == sched.Idle
	switch {
	case !yieldsBySlice(dev, q):
		if o.online && p.window > 0 {
			g.Bound = uint32(p.window)
		}
		if !t.works {
			break // left alone: online requests must not cost it two calls each
		}
		o.wake = earlier(o.wake, o.clear)
		if o.busy && !p.stays || q.ID != p.current || idle && o.others {
			return
		}
	case idle && t.works && p.rest > now:
		o.wake = earlier(o.wake, p.rest)
		return
	case q.ID == p.current && !(t.works && idle && o.others):
		if o.online || idle {
			g.Slice = p.slice
		}
	case !t.works: // costs nothing, and goes on at once when it has work
		if o.online && p.slice > 0 { // which is noticed only after a while
			g.Slice = max(dev.MinSharedSlice, p.slice)
		}
	case q.Level() == sched.LevelNone: // cannot be made to wait its turn: the best is a short one
		if (o.online || idle) && p.slice > 0 {
			g.Slice = max(dev.MinSharedSlice, p.slice)
		}
	default:
		return
	}
	p.grants = append(p.grants, g)
}

// yieldsBySlice reports whether the hardware takes the device from q by itself.
func yieldsBySlice(dev *sched.Device, q *sched.Queue) bool {
	return dev.Sliced() && q.Can&sched.CanSlice != 0
}

// survey brings the accounts up to date and looks at what there is.
func (p *giveway) survey(v *sched.View, ts []tally) outlook {
	o := outlook{mine: -1}
	dev := &v.Devices[0]
	over := v.Now >= p.since.Add(p.turn)
	ahead := p.ahead(v.Devices)
	serving := false
	for i := range v.Queues {
		q, t := &v.Queues[i], &ts[i]
		t.update(q)
		if q.ID == p.current {
			o.mine = i
			if over && t.active {
				p.endTurn(v.Now, q, t)
			}
		}
		switch q.Attr.Class {
		case sched.Online:
			o.online = true
			if contends(q) {
				serving = true
			} else if due, change := p.due(q, v.Now, ahead); due || change > 0 {
				o.busy = o.busy || due
				o.clear = earlier(o.clear, change)
			}
		case sched.Batch, sched.Idle:
			o.rest = true
			p.clocks[q.Attr.Class-sched.Batch].see(&t.vtime)
			if !t.works {
				break
			}
			o.others = o.others || q.Attr.Class == sched.Batch
			if o.rivals == 0 || q.Attr.Class < o.class {
				o.rivals, o.class = 0, q.Attr.Class
			}
			if q.Attr.Class == o.class {
				o.rivals++
			}
		default:
			// Of one that nobody can look into the slice decides: an idle queue
			// at the least gets what it leaves.
			o.others = o.others || contends(q) && (q.Counters.Known || !yieldsBySlice(dev, q))
		}
	}
	p.lingerOn(v.Now, serving, &o)
	return o
}

// endTurn settles with the queue whose turn is over.
func (p *giveway) endTurn(now sched.Time, q *sched.Queue, t *tally) {
	if t.class == sched.Idle && q.Measured && t.served-t.atTurn < p.turn/10 {
		// The device has no time to spare, and each look at it costs those who
		// have it two switches.
		p.rest = now.Add(idleRest * p.turn)
	}
	switch {
	case p.unused(q, t):
		t.idler, t.works = true, false
	case t.served == t.atTurn:
		t.prepay(p.turn, q.Weight()*unit)
	}
}

// update charges q for what it has used since it was last looked at.
func (t *tally) update(q *sched.Queue) {
	if q.Attr.Class != t.class || !t.known {
		*t = tally{served: q.Served, atTurn: q.Served, class: q.Attr.Class, known: true}
	}
	if t.class != sched.Batch && t.class != sched.Idle {
		return // it takes no turns
	}
	if used := q.Served - t.served; used > 0 {
		t.idler = false
		t.charge(used, q.Weight()*unit)
	}
	t.served = q.Served
	t.works = !t.idler && contends(q)
}

// lingerOn keeps the device clear for a while after online work, in case there
// is more.
func (p *giveway) lingerOn(now sched.Time, serving bool, o *outlook) {
	if p.serving && !serving {
		p.until = now.Add(p.linger)
	}
	p.serving = serving
	switch {
	case serving:
		o.busy, o.clear = true, 0
	case now < p.until:
		o.busy = true
		o.clear = earlier(o.clear, p.until)
	}
}

// rotate decides whose turn it is among the queues of the best class that have
// work: the current one until its turn is over, then the least served by weight.
//
// Those who come to work join at the clock. Batch and idle queues have one each:
// an idle queue that has starved for hours must not set the mark for a new batch
// queue.
func (p *giveway) rotate(v *sched.View, ts []tally, o *outlook) {
	for i := range p.clocks {
		p.clocks[i].tick()
	}
	best, mine := -1, o.mine
	for i := range ts {
		t := &ts[i]
		if t.class != sched.Batch && t.class != sched.Idle {
			continue
		}
		p.clocks[t.class-sched.Batch].join(&t.vtime, t.works, 0)
		if t.works && t.class == o.class && (best < 0 || t.at < ts[best].at) {
			best = i
		}
	}
	switch {
	case best < 0 && mine >= 0 && !ts[mine].idler:
		// Nobody else wants the turn, so one who pauses keeps it, and with it
		// its slice: a call less for every pause.
		return
	case best < 0:
		p.current = 0
		return
	case mine < 0 || !ts[mine].works || ts[mine].class != o.class || v.Now >= p.since.Add(p.turn):
		mine = best
		p.current, p.since = v.Queues[best].ID, v.Now
		for i := range ts {
			ts[i].atTurn = ts[i].served
		}
	}
	if q := &v.Queues[mine]; o.rivals > 1 || q.Measured && !q.Counters.Known {
		o.wake = earlier(o.wake, p.since.Add(p.turn))
	}
}

// unused reports whether q has let the turn that is over pass. Only where the
// hardware tells the time does anyone know. What it tells is whose context was on
// the device, at work or not, so only one that never was there is idle; one with
// work is, if only for a moment, however busy the others are.
func (p *giveway) unused(q *sched.Queue, t *tally) bool {
	seen := q.Measured && !q.Counters.Known && q.State == sched.Running && q.MeasuredAt.Sub(p.since) >= p.turn/2
	return seen && t.served == t.atTurn
}

// earlier is the sooner of two wake-ups, of which zero is none.
func earlier(a, b sched.Time) sched.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
