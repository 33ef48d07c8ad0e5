package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// Config says what kind of world to make.
type Config struct {
	Seed    uint64
	Devices []DeviceConfig
	Clients []ClientConfig
	// Choice is the policy. Without one there is no daemon: native sharing.
	Policy    sched.PolicyChoice
	Sched     sched.Config
	WakeDelay Dist // from news to the daemon's turn; zero means 20-60 us

	Warmup time.Duration // before anything is counted
	Length time.Duration // of what is counted
	// Drain is how long after that everything submitted may take to finish.
	// Zero: nobody waits for it. Otherwise the world also ends in order, and it
	// is checked that everything is done and everything undone.
	Drain time.Duration

	Faults        Faults
	Segments      int  // how many pieces of the timeline to keep
	AllowLivelock bool // do not count two short slices as a violation
	Recorder      Recorder
}

// DeviceConfig is one device of the world.
type DeviceConfig struct {
	ID    sched.DeviceID
	Model Model
}

// Recorder is told of every turn of the daemon.
type Recorder interface {
	Record(sched.Time, []sched.Event, []sched.Action)
}

// World is a simulated node.
type World struct {
	cfg        Config
	now        sched.Time
	timeline   timeline
	devices    []*device
	clients    []*client
	queues     map[sched.QueueID]*queue
	daemon     *daemon
	deviceRand *rand.Rand
	stopping   bool // nobody asks for more
	segments   []Segment
	violations []string
	countedEnd sched.Time // of what is counted
	reopened   int        // queues that programs had after their first
}

// Segment is a piece of a device's time.
type Segment struct {
	Device sched.DeviceID
	Queue  sched.QueueID // zero: the device was switching
	From   sched.Time
	To     sched.Time
}

// New returns a world at time zero. It panics if cfg names no device for a client.
func New(cfg Config) *World {
	if cfg.WakeDelay == (Dist{}) {
		cfg.WakeDelay = Between(20*us, 60*us)
	}
	w := &World{cfg: cfg, queues: make(map[sched.QueueID]*queue)}
	w.deviceRand = w.rand("device")
	w.countedEnd = sched.Time(cfg.Warmup + cfg.Length)
	w.daemon = newDaemon(w)
	for _, d := range cfg.Devices {
		w.devices = append(w.devices, newDevice(w, d.ID, d.Model))
	}
	for i := range cfg.Clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	return w
}

// rand returns a source of chance for one purpose, so that what one part of the
// world draws does not change what another sees.
func (w *World) rand(purpose string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(purpose) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(w.cfg.Seed, h))
}

// after has f called once, d from now.
func (w *World) after(d time.Duration, f func()) { w.timeline.set(&timer{fire: f}, w.now.Add(d)) }

// runUntil lives until t, or until enough says so.
func (w *World) runUntil(t sched.Time, enough func() bool) {
	for {
		if enough != nil && enough() {
			return
		}
		next := w.timeline.next()
		if next > t {
			w.now = max(w.now, t)
			return
		}
		if next < w.now {
			panic("sim: a timer was set in the past")
		}
		w.now = next
		w.timeline.fire()
	}
}

// Run lives the whole of the world's life and tells of it.
func (w *World) Run() Result {
	if w.cfg.Policy.Make != nil {
		w.daemon.start()
		w.cfg.Faults.arm(w)
	}
	w.runUntil(w.countedEnd, nil)
	for _, d := range w.devices {
		d.engine.close()
	}
	r := w.result()
	if w.cfg.Drain > 0 {
		w.drain()
	}
	r.Events = w.timeline.fired + w.daemon.events
	r.Violations = w.violations
	return r
}

// windUp lets everything finish, has the daemon let go, and checks both. Queues
// of class idle have asked to be starved: they must finish when it has let go.
func (w *World) drain() {
	w.stopping = true
	w.cfg.Faults.disarm()
	w.mustFinish(func(q *queue) bool { return q.owner.cfg.Attr.Class != sched.Idle })
	w.daemon.shutDown()
	w.runUntil(w.now.Add(time.Minute), w.daemon.shutDownDone)
	for _, q := range w.alive() {
		if !q.unchanged() {
			w.violation("after it has let go, queue %d is not as it was found: %s", q.id, q.changes())
		}
	}
	if !w.daemon.journal.Empty() {
		w.violation("the journal is not empty: %v", w.daemon.journal.Undo())
	}
	w.mustFinish(func(*queue) bool { return true })
}

// mustFinish lives until the programs that count have nothing left to do.
func (w *World) mustFinish(counts func(*queue) bool) {
	idle := func() bool {
		for _, c := range w.clients {
			if !c.idle() && (c.q == nil || counts(c.q)) {
				return false
			}
		}
		return !w.daemon.crashed
	}
	w.runUntil(w.now.Add(w.cfg.Drain), idle)
	if idle() {
		return
	}
	for _, q := range w.alive() {
		if q.completed != q.submitted && counts(q) {
			w.violation("queue %d completed %d of %d commands", q.id, q.completed, q.submitted)
		}
	}
}

func (w *World) alive() []*queue {
	var all []*queue
	for _, d := range w.devices {
		for _, q := range d.queues {
			if !q.dead {
				all = append(all, q)
			}
		}
	}
	return all
}

func (w *World) violation(format string, args ...any) {
	if len(w.violations) < 16 {
		w.violations = append(w.violations, fmt.Sprintf("at %v: ", time.Duration(w.now))+fmt.Sprintf(format, args...))
	}
}

func (w *World) addSegment(d *device, q *queue, from, to sched.Time) {
	if len(w.segments) >= w.cfg.Segments || from >= to {
		return
	}
	s := Segment{Device: d.id, From: from, To: to}
	if q != nil {
		s.Queue = q.id
	}
	w.segments = append(w.segments, s)
}

// Result is what came of a run.
type Result struct {
	Clients    []ClientResult
	Devices    []DeviceResult
	Segments   []Segment
	Events     uint64 // simulated: timers fired and events the daemon took in
	Calls      uint64 // control calls made
	Steps      uint64 // of the daemon
	Crashes    int
	Simulated  time.Duration
	Overruled  sched.Mistake // the first for which the scheduler overruled the policy, if it did
	Violations []string
}

// ClientResult is how one program fared while it was counted.
type ClientResult struct {
	Name       string
	Queue      sched.QueueID
	Device     sched.DeviceID
	Class      sched.Class
	Latencies  []time.Duration // sorted; of requests that did not finish, how long they had waited
	Latency    stats.Summary
	SLO        time.Duration // zero: none
	SLOMet     float64       // part of the latencies within it
	Unfinished int
	Requests   int           // finished
	Rate       float64       // finished a second
	DeviceTime time.Duration // had of the device, over the whole run
	OpenLoop   bool          // its latency means something: it does not merely run flat out
}

func (w *World) result() Result {
	r := Result{
		Segments: w.segments, Calls: w.daemon.calls, Steps: w.daemon.steps, Crashes: w.daemon.crashes,
		Simulated: w.now.Sub(0), Overruled: w.daemon.overruled,
	}
	for _, c := range w.clients {
		r.Clients = append(r.Clients, c.result())
	}
	for _, d := range w.devices {
		r.Devices = append(r.Devices, DeviceResult{ID: d.id, Occupancy: d.occupancy()})
	}
	return r
}
