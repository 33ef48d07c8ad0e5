package sched

import (
	"cmp"
	"slices"
	"time"
)

// Config holds what an administrator may set. The zero value is good.
type Config struct {
	// StallLimit is how long a policy may leave a device without a grant for
	// any ready queue, and how long it must behave before it is trusted
	// again. Zero means 2 s.
	StallLimit time.Duration
	// Floor is the part of a device that every ready queue gets whatever the
	// policy says; all together get no more than a quarter. Zero means 0.02;
	// negative means none, and then to hold a ready queue past the StallLimit
	// is a mistake of the policy.
	Floor float64
	// FloorTurn is how long the floor lets a starving queue run. Zero means 50 ms.
	FloorTurn time.Duration
}

func (c Config) withDefaults() Config {
	if c.StallLimit <= 0 {
		c.StallLimit = 2 * time.Second
	}
	if c.Floor == 0 {
		c.Floor = 0.02
	}
	c.Floor = min(max(c.Floor, 0), charityMost)
	if c.FloorTurn <= 0 {
		c.FloorTurn = 50 * time.Millisecond
	}
	return c
}

// Scheduler is the state machine. It is not safe for concurrent use.
type Scheduler struct {
	cfg       Config
	choice    PolicyChoice // for devices without one of their own
	settings  []setting
	now       Time
	devices   []*device // in order of ID
	domains   []*domain // in order of their first device
	where     map[QueueID]*device
	actions   []Action
	lastID    ActionID
	epoch     uint64 // of plans, so that a grant of an earlier one is not taken for this one's
	lettingGo bool
}

// setting is a parameter of the choice that was set for all devices.
type setting struct{ name, value string }

// device is an open device and the queues on it.
type device struct {
	Device
	queues []Queue // in order of ID
	domain *domain

	// Service is shared by the queues on the device, so it is kept as a
	// clock that all of them read: it advances by elapsed/busy.
	clock   time.Duration
	clocked Time
	busy    int

	floor charity
	ready int  // queues with work that they may do
	crowd int  // of those, the ones that the floor is for
	short int  // queues that may be on it and have, or may have, a slice below MinTurn
	wake  Time // for the scheduler's own affairs: retries and the floor

	shortGrants int // of the plan being marked
}

// domain is a policy and the devices it is in charge of: one, or all.
type domain struct {
	choice   PolicyChoice
	own      bool // chosen for its one device, and not with all others
	policy   Policy
	observer Observer
	devices  []*device
	view     View
	merged   []Queue // backs view.Queues when there are several devices
	dirty    bool
	granted  bool // the plan being marked grants a queue with work
	wake     Time // when the policy wants to be asked again
	guard    guard
}

// New returns a scheduler with no devices that follows c.
func New(cfg Config, c PolicyChoice) *Scheduler {
	return &Scheduler{cfg: cfg.withDefaults(), choice: c, where: make(map[QueueID]*device)}
}

// Step tells the scheduler what has happened up to now. It returns what to do,
// and the time by which Step must be called again even if nothing happens. The
// actions are valid until the next Step. A clock that goes back is taken to
// stand still.
func (s *Scheduler) Step(now Time, events []Event) (actions []Action, wake Time) {
	s.now = max(s.now, now)
	s.actions = s.actions[:0]
	for i := range events {
		s.apply(&events[i])
	}
	wake = Never
	for _, d := range s.domains {
		if d.dirty || d.due() <= s.now {
			s.decide(d)
		}
		wake = min(wake, d.due())
	}
	return s.actions, wake
}

// due is when d must be looked at again even if nothing happens.
func (d *domain) due() Time {
	t := min(d.wake, d.guard.wake)
	for _, dev := range d.devices {
		t = min(t, dev.wake)
	}
	return t
}

// decide asks the policy about one domain and issues the actions that bring its
// devices closer to the answer.
func (s *Scheduler) decide(d *domain) {
	d.dirty = false
	d.wake, d.guard.wake = Never, Never
	s.look(d)
	free := s.lettingGo
	if !free {
		plan := d.policy.Plan(&d.view)
		if plan.Wake > 0 {
			d.wake = max(plan.Wake, s.now+1)
		}
		s.epoch++
		free = s.judge(d, s.mark(d, &plan))
	}
	for _, dev := range d.devices {
		s.steer(dev, free)
	}
}

// look brings the view of d, and the counts of its devices, up to date.
func (s *Scheduler) look(d *domain) {
	for _, dev := range d.devices {
		dev.tick(s.now)
		dev.ready, dev.crowd, dev.short = 0, 0, 0
		for i := range dev.queues {
			q := &dev.queues[i]
			dev.settle(q)
			if q.mayRun() {
				dev.ready++
				if q.Attr.Class != Idle {
					dev.crowd++
				}
			}
			if q.act.short && !q.off() {
				dev.short++
			}
		}
	}
	d.view.Now = s.now
	if len(d.devices) == 1 {
		d.view.Queues = d.devices[0].queues
		return
	}
	d.merged = d.merged[:0]
	for _, dev := range d.devices {
		d.merged = append(d.merged, dev.queues...)
	}
	slices.SortFunc(d.merged, func(a, b Queue) int { return cmp.Compare(a.ID, b.ID) })
	d.view.Queues = d.merged
}

// tick advances the service clock.
func (d *device) tick(now Time) {
	if d.busy == 0 {
		d.clocked = now
		return
	}
	each := now.Sub(d.clocked) / time.Duration(d.busy)
	d.clock += each
	d.clocked = d.clocked.Add(each * time.Duration(d.busy)) // what is left counts next time
}

// settle credits q with what it has been served since it was last looked at.
func (d *device) settle(q *Queue) {
	if q.act.busy {
		if !q.Measured {
			q.Served += d.clock - q.act.clock
		}
		q.act.clock = d.clock
	}
}

// touch brings q up to date. It must be called before anything that may put q
// on the device or take it off, and touched after it.
func (d *device) touch(q *Queue, now Time) {
	d.tick(now)
	d.settle(q)
}

func (d *device) touched(q *Queue) {
	on := q.onDevice()
	switch can := on || q.State != Stopped; {
	case can && q.act.since == Never:
		q.act.since = d.clocked
	case !can && q.act.since != Never:
		q.act.could += d.clocked.Sub(q.act.since)
		q.act.since = Never
	}
	if on == q.act.busy {
		return
	}
	q.act.busy = on
	if on {
		d.busy++
		q.act.clock = d.clock
	} else {
		d.busy--
	}
}

// Queue returns the scheduler's record of one queue.
func (s *Scheduler) Queue(id QueueID) (Queue, bool) {
	if d, q := s.find(id); q != nil {
		d.touch(q, s.now)
		return *q, true
	}
	return Queue{}, false
}

// Queues appends a copy of every queue to buf, by device and ID.
func (s *Scheduler) Queues(buf []Queue) []Queue {
	for _, d := range s.devices {
		for i := range d.queues {
			d.touch(&d.queues[i], s.now)
		}
		buf = append(buf, d.queues...)
	}
	return buf
}

// Settled reports whether nothing is under way and nothing is changed: every
// queue runs with the slice and window that its device gave it. After LetGo
// that is the moment to leave.
func (s *Scheduler) Settled() bool {
	for _, d := range s.devices {
		for i := range d.queues {
			if q := &d.queues[i]; !q.act.untouched(q) {
				return false
			}
		}
	}
	return true
}

func (s *Scheduler) find(id QueueID) (*device, *Queue) {
	d := s.where[id]
	if d == nil {
		return nil, nil
	}
	i, _ := d.index(id)
	return d, &d.queues[i]
}

// index is slices.BinarySearchFunc without the copy of a Queue for each look.
func (d *device) index(id QueueID) (int, bool) {
	lo, hi := 0, len(d.queues)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); d.queues[mid].ID < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(d.queues) && d.queues[lo].ID == id
}
