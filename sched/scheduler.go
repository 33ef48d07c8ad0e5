package sched

import (
	"cmp"
	"slices"
	"time"
)

// Config holds the scheduler's settings. The zero value means the defaults.
type Config struct {
	// StallLimit is how long a policy may grant no ready queue of a device
	// before it is overruled, and how long it must make no mistake before it
	// decides again. Zero means 2 s.
	StallLimit time.Duration
	// Floor is the share of a device that every ready queue gets, whatever the
	// policy decides. All queues together get at most a quarter. Zero means
	// 0.02. Negative means no floor; then a policy that holds a ready queue
	// longer than StallLimit is overruled.
	Floor float64
	// FloorTurn is the device time that a floor turn gives. Zero or less means 50 ms, and on a
	// device with slices 20 ms, or more if the commands of the queue are long. With
	// slices it is less where an online process could not bear the delay.
	FloorTurn time.Duration
	// InversionLimit is how long a priority inversion lasts before it is reported and acted
	// upon: see Inversion. Zero means 100 ms. Negative means that none is looked for.
	InversionLimit time.Duration
}

func (c Config) withDefaults() Config {
	if c.StallLimit <= 0 {
		c.StallLimit = 2 * time.Second
	}
	if c.Floor == 0 {
		c.Floor = 0.02
	}
	c.Floor = min(max(c.Floor, 0), floorMax)
	if c.InversionLimit == 0 {
		c.InversionLimit = 100 * time.Millisecond
	}
	return c
}

// Scheduler is the state machine. It is not safe for concurrent use.
type Scheduler struct {
	cfg          Config
	choice       PolicyChoice // for devices without a policy of their own
	now          Time
	devices      []*device // in order of ID
	domains      []*domain // in order of their first device
	deviceOf     map[QueueID]*device
	actions      []Action
	decisions    []Decision
	inversions   []Inversion
	lastID       ActionID
	epoch        uint64 // number of the current plan: grants of earlier plans have a lower one
	shuttingDown bool
}

// device is an open device and the queues on it.
type device struct {
	Device
	queues []Queue // in order of ID
	domain *domain

	service   service
	drainWake Time // when the first drain must be over

	floor     floorTurn
	inversion inversionWatch
	ready     int  // queues that are ready and not paused
	withFloor int  // of those, the queues that have a floor
	short     int  // queues that may be on the device and may have a slice below MinSharedSlice
	wake      Time // when a retry or the floor needs the next Step

	shortGrants int // grants of the current plan with a slice below MinSharedSlice
}

// domain is a policy and the devices that it schedules: one, or all.
type domain struct {
	choice   PolicyChoice
	own      bool // the policy was chosen for this one device, not for all
	policy   Policy
	observer Observer
	devices  []*device
	view     View
	merged   []Queue         // backs view.Queues when there are several devices
	dirty    bool            // needs a new plan
	granted  bool            // the current plan grants a queue that is ready and not paused
	waiting  [classes]Reason // Plan.Waiting of the current plan
	wake     Time            // Plan.Wake of the current plan
	guard    guard
}

// New returns a scheduler without devices that uses the policy c.
func New(cfg Config, c PolicyChoice) *Scheduler {
	return &Scheduler{cfg: cfg.withDefaults(), choice: c, deviceOf: make(map[QueueID]*device)}
}

// Step applies the events that have happened up to now. It returns the actions
// to carry out, and the time by which Step must be called again even without an
// event. The actions are valid until the next Step. If now is earlier than in the
// last Step, the time of the last Step is used.
func (s *Scheduler) Step(now Time, events []Event) (actions []Action, wake Time) {
	s.now = max(s.now, now)
	s.actions, s.decisions, s.inversions = s.actions[:0], s.decisions[:0], s.inversions[:0]
	for i := range events {
		s.apply(&events[i])
	}
	for _, d := range s.devices {
		if d.service.completed {
			s.dividePending(d)
		}
		s.watchDevice(d)
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

// due returns when d must be decided again even without an event.
func (d *domain) due() Time {
	t := min(d.wake, d.guard.wake)
	for _, dev := range d.devices {
		t = min(t, dev.wake)
	}
	return t
}

// decide gets a plan from the policy of d and issues the actions that bring its
// devices closer to the plan.
func (s *Scheduler) decide(d *domain) {
	d.dirty = false
	d.wake, d.guard.wake = Never, Never
	s.refreshView(d)
	useDefaults := s.shuttingDown
	if !useDefaults {
		plan := d.policy.Plan(&d.view)
		if plan.Wake > 0 {
			d.wake = max(plan.Wake, s.now+1)
		}
		d.waiting = plan.Waiting
		s.epoch++
		useDefaults = s.checkPolicy(d, s.markGrants(d, &plan))
	}
	for _, dev := range d.devices {
		s.reconcile(dev, useDefaults)
	}
}

// refreshView updates the view of d and the counts of its devices.
func (s *Scheduler) refreshView(d *domain) {
	for _, dev := range d.devices {
		dev.service.advance(s.now, dev.Serial)
		dev.ready, dev.withFloor, dev.short, dev.drainWake = 0, 0, 0, Never
		busy := 0
		for i := range dev.queues {
			q := &dev.queues[i]
			dev.service.credit(q)
			if q.act.use == drains {
				s.checkDrain(dev, q)
			}
			if q.Runnable() {
				dev.ready++
				if q.Attr.Class != Idle {
					dev.withFloor++
				}
			}
			if q.act.short && !q.off() {
				dev.short++
			}
			if isBusy(q) {
				busy++
			}
		}
		dev.service.busy = busy
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

// Queues appends a copy of every queue to buf, by device and ID.
func (s *Scheduler) Queues(buf []Queue) []Queue {
	for _, d := range s.devices {
		for i := range d.queues {
			d.beforeChange(&d.queues[i], s.now)
		}
		buf = append(buf, d.queues...)
	}
	return buf
}

// Settled reports whether no action is pending and every queue runs with the
// default slice and bound of its device. After ShutdownStarted the daemon may
// exit when this is true.
func (s *Scheduler) Settled() bool {
	for _, d := range s.devices {
		for i := range d.queues {
			if q := &d.queues[i]; !q.act.isDefault(q) {
				return false
			}
		}
	}
	return true
}

func (s *Scheduler) find(id QueueID) (*device, *Queue) {
	d := s.deviceOf[id]
	if d == nil {
		return nil, nil
	}
	i, _ := d.index(id)
	return d, &d.queues[i]
}

// index is slices.BinarySearchFunc without copying a Queue at each comparison.
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
