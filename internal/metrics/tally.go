package metrics

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/giveway/giveway/sched"
)

// Labels says which labels the metrics of processes have, besides device and class. Without
// any there are no such metrics. Each is a series for every process, user, container or pod.
type Labels struct {
	PID, User, Container, Pod, Namespace bool

	Series int // at most so many series of a metric; zero: DefaultSeries
}

// DefaultSeries is how many series a metric of processes has at most.
const DefaultSeries = 200

// Any reports whether there are metrics of processes.
func (l Labels) Any() bool { return l.PID || l.User || l.Container || l.Pod || l.Namespace }

// Process identifies a process.
type Process struct {
	PID       int
	UID       uint32
	User      string
	Container string // the name if it is known, otherwise the id
	Pod       string // the name if it is known, otherwise the UID
	Namespace string // empty: unknown
}

// Tally counts what happens in the daemon, from its start on: no count ever goes down, also
// when processes exit. Its methods may be called from any goroutine.
type Tally struct {
	mu     sync.Mutex // the loop takes it: it is never held for long
	queues map[sched.QueueID]*queue
	counts
}

// counts is what was counted.
type counts struct {
	labels    Labels                       // they never change
	classes   map[seriesKey]*time.Duration // device time by device and class
	uses      map[seriesKey]*Use           // the same
	times     family
	requests  family
	latency   [classes]histogram // of requests
	met       [classes]uint64    // requests within their SLO
	missed    [classes]uint64
	waits     map[sched.DeviceID]*histogram
	stops     [levels]histogram // from the order to the outcome
	actions   map[actionKey]*actionCount
	floors    map[sched.DeviceID]uint64
	overruled map[sched.DeviceID]uint64
	inverted  map[sched.DeviceID]*inversions
	guardians uint64 // that were started
	reloads   [2]uint64
	failures  failures
}

// snapshot returns a copy of the counts, to be written without delaying the loop.
func (t *Tally) snapshot() *counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.classes, c.waits, c.actions = copied(c.classes), copied(c.waits), copied(c.actions)
	c.inverted, c.uses = copied(c.inverted), copied(c.uses)
	c.floors, c.overruled = maps.Clone(c.floors), maps.Clone(c.overruled)
	c.times.of, c.requests.of = copied(c.times.of), copied(c.requests.of)
	return &c
}

// copied returns a copy of a map and of what its values point to.
func copied[K comparable, V any](m map[K]*V) map[K]*V {
	values := make([]V, 0, len(m))
	out := make(map[K]*V, len(m))
	for k, v := range m {
		values = append(values, *v)
		out[k] = &values[len(values)-1]
	}
	return out
}

const (
	classes = 4
	levels  = 4
)

// queue is an open queue.
type queue struct {
	key    seriesKey
	uid    uint32
	served time.Duration
	class  *time.Duration // of its device and class; nil: not known yet
	series *series        // nil: not known yet, or it may have changed
	at     uint64         // family.changed when series was looked up
}

// actionKey is a kind of action.
type actionKey struct {
	verb  sched.Verb
	level sched.Level
}

// outcomes is the number of outcomes of an action.
const outcomes = 5

type actionCount struct {
	cost histogram
	over [outcomes]uint64 // by outcome
}

// NewTally returns a Tally in which everything is zero.
func NewTally(l Labels) *Tally {
	if l.Series <= 0 {
		l.Series = DefaultSeries
	}
	t := &Tally{queues: make(map[sched.QueueID]*queue), counts: counts{
		labels: l, classes: make(map[seriesKey]*time.Duration), uses: make(map[seriesKey]*Use),
		waits: make(map[sched.DeviceID]*histogram), actions: make(map[actionKey]*actionCount),
		floors: make(map[sched.DeviceID]uint64), overruled: make(map[sched.DeviceID]uint64),
		inverted: make(map[sched.DeviceID]*inversions),
	}}
	t.times.most, t.requests.most = l.Series, l.Series
	return t
}

// key returns the series of a process, with the labels that are wanted.
func (t *Tally) key(device sched.DeviceID, class sched.Class, p *Process) seriesKey {
	k := seriesKey{device: clean(string(device)), class: class % classes}
	if t.labels.PID {
		k.pid = strconv.Itoa(p.PID)
	}
	if t.labels.User {
		k.user = clean(p.User)
	}
	if t.labels.Container {
		k.container = clean(p.Container)
	}
	if t.labels.Pod {
		k.pod = clean(p.Pod)
	}
	if t.labels.Namespace {
		k.namespace = clean(p.Namespace)
	}
	return k
}

// Open begins to count the device time of a queue.
func (t *Tally) Open(id sched.QueueID, device sched.DeviceID, class sched.Class, p Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queues[id] = &queue{key: t.key(device, class, &p), uid: p.UID}
}

// SetClass counts what a queue is served from now on for another class.
func (t *Tally) SetClass(id sched.QueueID, class sched.Class) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.queues[id]; q != nil {
		q.key.class, q.class, q.series = class%classes, nil, nil
	}
}

// Close ends the count of a queue.
func (t *Tally) Close(id sched.QueueID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.queues, id)
}

// Served takes in the device time of queues so far.
func (t *Tally) Served(now sched.Time, all []sched.Queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all {
		q := t.queues[all[i].ID]
		if q == nil || all[i].Served <= q.served {
			continue
		}
		more := all[i].Served - q.served
		q.served = all[i].Served
		if q.class == nil {
			q.class = t.class(seriesKey{device: q.key.device, class: q.key.class})
		}
		*q.class += more
		if !t.labels.Any() {
			continue
		}
		if q.series == nil || q.at != t.times.changed || q.series.others && now >= t.times.full {
			q.series, q.at = t.times.get(now, q.key, q.uid), t.times.changed
		}
		q.series.used = now
		q.series.time += more
	}
}

// class returns the device time of a class on a device.
func (t *Tally) class(k seriesKey) *time.Duration {
	if t.classes[k] == nil {
		t.classes[k] = new(time.Duration)
	}
	return t.classes[k]
}

// Request counts a request that is over. Without an SLO it neither meets nor misses it.
func (t *Tally) Request(now sched.Time, class sched.Class, p Process, took, slo time.Duration) {
	class %= classes
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latency[class].observe(took)
	var s *series
	if t.labels.Any() {
		s = t.requests.get(now, t.key("", class, &p), p.UID)
		s.requests++
	}
	switch {
	case slo <= 0:
		return
	case took <= slo:
		t.met[class]++
		if s != nil {
			s.met++
		}
	default:
		t.missed[class]++
		if s != nil {
			s.missed++
		}
	}
}

// Waited counts that an online process had work and waited for a device.
func (t *Tally) Waited(device sched.DeviceID, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.waits[device]
	if h == nil {
		h = &histogram{}
		t.waits[device] = h
	}
	h.observe(d)
}

// Action is an action that is over.
type Action struct {
	At      sched.Time
	PID     int
	Verb    sched.Verb
	Level   sched.Level
	Outcome sched.Outcome
	Took    time.Duration // from the order to the outcome
	Cost    time.Duration // of the call to the driver; zero: it is not known
}

// Failed reports whether the action failed although its process was still there.
func (a *Action) Failed() bool { return a.Outcome != sched.Done && a.Outcome != sched.Gone }

// Over counts an action. It reports whether the action failed and is the first of its kind,
// of its process, to fail for a while: then it is worth a line.
func (t *Tally) Over(a Action) (report bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := actionKey{a.Verb, a.Level}
	c := t.actions[k]
	if c == nil {
		c = &actionCount{}
		t.actions[k] = c
	}
	c.over[min(int(a.Outcome), outcomes-1)]++
	if a.Cost > 0 {
		c.cost.observe(a.Cost)
	}
	if a.Verb == sched.Stop && a.Outcome == sched.Done {
		t.stops[min(int(a.Level), levels-1)].observe(a.Took)
	}
	return a.Failed() && t.failures.add(a)
}

// FloorTurn counts that a queue of a device has begun a floor turn.
func (t *Tally) FloorTurn(device sched.DeviceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floors[device]++
}

// Overruled counts that the policy of a device was overruled.
func (t *Tally) Overruled(device sched.DeviceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overruled[device]++
}

// GuardianStarted counts a guardian.
func (t *Tally) GuardianStarted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guardians++
}

// ConfigRead counts that the configuration was read again, and whether it was refused.
func (t *Tally) ConfigRead(refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if refused {
		t.reloads[1]++
	} else {
		t.reloads[0]++
	}
}
