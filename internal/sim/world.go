package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// Config describes a World.
type Config struct {
	Seed    uint64
	Devices []DeviceConfig
	Clients []ClientConfig
	// Policy is the policy in force. If Policy.Make is nil there is no daemon, and the
	// device shares its time as the vendor made it.
	Policy    sched.PolicyChoice
	Sched     sched.Config
	WakeDelay Dist // from an event to the daemon's step; zero value: 20-60 us

	Warmup time.Duration // before anything is counted
	Length time.Duration // of the counted part, after Warmup
	// Drain is how long submitted commands may take to finish after Length. If it is not
	// zero, the daemon also shuts down, and the World checks that all commands are done
	// and all changes undone.
	Drain         time.Duration
	Faults        Faults
	Segments      int           // how many Segments to keep
	AllowLivelock bool          // two slices too short to make progress are no violation
	Requests      int           // how many Requests to keep
	Recorder      loop.Recorder // of the daemon's steps; may be nil
	// Started, if not nil, is called with the scheduler of the daemon each time it starts.
	Started func(*sched.Scheduler)
	// Sample, if not nil, is called every SampleInterval with the queues that are open.
	Sample         func(sched.Time, []QueueSample)
	SampleInterval time.Duration
	// Simulated, if not nil, is advanced by the time that Run has simulated. Several
	// Worlds may share it.
	Simulated *atomic.Int64

	// The rest is for a Node, which has no end.

	// repeat, if not zero, makes traces of arrivals begin again after this time, and
	// clients that were killed start again.
	repeat time.Duration
	// maxBacklog limits the requests of one client that wait; later ones are dropped.
	// Zero: no limit.
	maxBacklog int
}

// DeviceConfig is one device of a World.
type DeviceConfig struct {
	ID    sched.DeviceID
	Model Model
}

// observer receives what a daemon can learn from the processes on its node: the daemon
// itself, or a Node.
type observer interface {
	// observe receives an event of one of the kinds that Node.Events lists, except
	// Progressed. Only the fields named there are set.
	observe(*queue, sched.Event)
	// countersChanged says that a queue with a gate progressed. wake: the shim would
	// wake the daemon.
	countersChanged(q *queue, wake bool)
}

// World is a simulated node.
type World struct {
	cfg        Config
	now        sched.Time
	timeline   timeline
	devices    []*device
	clients    []*client
	queues     map[sched.QueueID]*queue // including closed ones that the daemon has not heard of
	daemon     *daemon
	observer   observer
	deviceRand *rand.Rand
	faultRand  *rand.Rand
	faultsOver bool // no further faults are injected
	stopping   bool // clients make no further requests
	segments   []Segment
	requests   []Request
	violations []string
	countedEnd sched.Time // end of the counted part
	reopened   int        // queues that clients opened after their first
	reported   sched.Time // added to cfg.Simulated
}

// Segment is a period of a device's time.
type Segment struct {
	Device sched.DeviceID
	Queue  sched.QueueID // zero: the device was switching
	From   sched.Time
	To     sched.Time
}

// New returns a World at time zero. It panics if a client's device does not exist.
func New(cfg Config) *World {
	if cfg.WakeDelay == (Dist{}) {
		cfg.WakeDelay = Between(20*us, 60*us)
	}
	w := &World{cfg: cfg, queues: make(map[sched.QueueID]*queue)}
	w.deviceRand, w.faultRand = w.rand("device"), w.rand("faults")
	w.countedEnd = sched.Time(cfg.Warmup + cfg.Length)
	w.daemon = newDaemon(w)
	w.observer = w.daemon
	for _, d := range cfg.Devices {
		w.devices = append(w.devices, newDevice(w, d.ID, d.Model))
	}
	for i := range cfg.Clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	return w
}

// rand returns a random source for one purpose. Each purpose has its own, so that the
// draws of one part of the World do not change those of another. Another name for a
// purpose changes every run.
func (w *World) rand(purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, purpose) // never fails
	return rand.New(rand.NewPCG(w.cfg.Seed, h.Sum64()))
}

// after calls f once, at d from now.
func (w *World) after(d time.Duration, f func()) { w.timeline.set(&timer{fire: f}, w.now.Add(d)) }

// runUntil advances the clock to t, or until done, if not nil, returns true.
func (w *World) runUntil(t sched.Time, done func() bool) {
	for {
		if done != nil && done() {
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
		if w.cfg.Simulated != nil && w.now >= w.reported+simulatedStep {
			w.reportTime()
		}
		w.timeline.fire()
	}
}

// simulatedStep is how often Config.Simulated is advanced.
const simulatedStep = sched.Time(10 * time.Millisecond)

// reportTime advances cfg.Simulated by the time since the last call.
func (w *World) reportTime() {
	w.cfg.Simulated.Add(int64(w.now - w.reported))
	w.reported = w.now
}

// Run simulates warm-up, counted part and drain, and returns the result.
func (w *World) Run() Result {
	if w.cfg.Policy.Make != nil {
		w.daemon.start()
		w.scheduleCrash()
		w.scheduleKills()
		w.scheduleTraceFailures()
		w.scheduleStalls()
	}
	if w.cfg.Sample != nil {
		w.after(w.cfg.SampleInterval, w.sample)
	}
	w.runUntil(w.countedEnd, nil)
	if w.cfg.Simulated != nil {
		w.reportTime()
		w.cfg.Simulated = nil // the drain takes as long as it takes
	}
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

// drain lets all commands finish and shuts the daemon down, and checks both. Queues of
// class idle may starve while the daemon runs: they must finish after its shutdown.
func (w *World) drain() {
	w.stopping = true
	w.faultsOver = true
	w.mustFinish(func(q *queue) bool { return q.owner.cfg.Attr.Class != sched.Idle })
	w.daemon.shutDown()
	w.runUntil(w.now.Add(time.Minute), w.daemon.shutDownDone)
	w.checkRestored("the daemon's shutdown")
	if !w.daemon.journal.Empty() {
		w.violation("the journal is not empty after the daemon's shutdown: %v", w.daemon.journal.Undo())
	}
	w.mustFinish(func(*queue) bool { return true })
}

// mustFinish advances the clock until the clients of the selected queues are idle. It is
// a violation if they are not after cfg.Drain.
func (w *World) mustFinish(selected func(*queue) bool) {
	idle := func() bool {
		for _, c := range w.clients {
			if !c.idle() && (c.q == nil || selected(c.q)) {
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
		if q.completed != q.submitted && selected(q) {
			w.violation("queue %d completed %d of %d commands", q.id, q.completed, q.submitted)
		}
	}
}

// checkRestored checks that no change of a queue is left.
func (w *World) checkRestored(after string) {
	for _, q := range w.alive() {
		if q.changes != (changes{}) {
			w.violation("queue %d is not restored after %s: %+v", q.id, after, q.changes)
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
	if q == nil && from < to {
		d.switching += to.Sub(from)
		d.switches++
	}
	if len(w.segments) >= w.cfg.Segments || from >= to {
		return
	}
	s := Segment{Device: d.id, From: from, To: to}
	if q != nil {
		s.Queue = q.id
	}
	w.segments = append(w.segments, s)
}

// Result is the result of a run.
type Result struct {
	Clients    []ClientResult
	Devices    []DeviceResult
	Segments   []Segment
	Requests   []Request
	Events     uint64 // simulated: timers fired, and events that the daemon received
	Calls      uint64 // control calls made
	Steps      uint64 // of the daemon
	Crashes    int    // of the daemon
	Simulated  time.Duration
	Overruled  sched.Mistake // the first mistake for which the scheduler overruled the policy
	Inversions Inversions    // that the scheduler found, without the drain
	Violations []string
}

// Inversions counts the priority inversions of a run.
type Inversions struct {
	Count    int
	Time     time.Duration // that they lasted, together
	Remedies int
	First    sched.Inversion
}

func (i *Inversions) add(all []sched.Inversion) {
	for _, v := range all {
		if v.Began {
			if i.Count++; i.Count == 1 {
				i.First = v
			}
		}
		if i.Time += v.More; v.Remedy != sched.NoRemedy {
			i.Remedies++
		}
	}
}

// Request is a request of a client that was answered.
type Request struct {
	Client     int // index in Config.Clients
	Begin, End sched.Time
}

// ClientResult is the result of one client over the counted part of a run.
type ClientResult struct {
	Name   string
	Queue  sched.QueueID
	Device sched.DeviceID
	Class  sched.Class
	// Latencies of an open-loop client. An unfinished request counts with the time it has
	// waited.
	Latencies  stats.Distribution
	Latency    stats.Summary // of Latencies
	SLO        time.Duration // zero: none
	SLOMet     float64       // fraction of Latencies within SLO
	Unfinished int
	Requests   int           // finished
	Rate       float64       // finished per second
	DeviceTime time.Duration // over the whole run
	OpenLoop   bool          // false: the client saturates the device. Its latency means nothing and is not kept
}

func (w *World) result() Result {
	r := Result{
		Segments: w.segments, Requests: w.requests, Calls: w.daemon.calls, Steps: w.daemon.steps, Crashes: w.daemon.crashes,
		Simulated: w.now.Sub(0), Overruled: w.daemon.overruled,
		Inversions: w.daemon.inversions,
	}
	for _, c := range w.clients {
		r.Clients = append(r.Clients, c.result())
	}
	for _, d := range w.devices {
		r.Devices = append(r.Devices, DeviceResult{ID: d.id, Switching: d.switching, Switches: d.switches, Occupancy: d.occupancy()})
	}
	return r
}
