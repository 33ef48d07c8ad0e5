// Package live is the simulator as a backend of the real daemon: a sim.Node whose clock
// follows the real clock. The daemon finds simulated devices, processes and queues, and
// controls them as it controls those of a GPU. It is for demonstrations, documentation and
// tests on machines without an accelerator, and the example of docs/BACKENDS.md.
//
// The devices and processes come from a scenario file, which repeats for ever. A process has
// a pid above the largest that Linux gives to a real one, and its command is the client's
// name after "sim: ".
//
// At speed 1 a simulated second is a real second. At speed 10 it is 100 ms: to the daemon
// the devices and processes are ten times as fast, and so all durations that the backend
// reports are a tenth of those in the scenario, slices and SLOs included.
package live

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Limits of the speed. The machine falls behind long before the upper one.
const (
	minSpeed = 0.001
	maxSpeed = 1000
)

// Backend is a simulated node. It implements hal.Backend, and hal.Batcher for its queues.
type Backend struct {
	about   string // the scenario, for Checks
	host    hal.Host
	devices []device

	mu     sync.Mutex // guards what follows
	node   *sim.Node
	clock  clock
	queues map[sched.QueueID]*queue // by the Node's number
	events []sched.Event            // reused
	found  []sched.Event            // QueueOpened and QueueClosed, for the discovery goroutine
	facts  []sched.Event            // requests, hints and device times, for Poll
	spans  []hal.Span               // reused
	// reported is until when the spans of each device are reported, and origin when the
	// scheduler's clock was zero.
	reported []sched.Time
	origin   time.Time
	// processes holds those that have a queue, by the Node's number.
	processes map[sched.ProcessID]*process
	started   int // processes so far
}

// New returns a backend that runs a scenario, at so many simulated seconds per second.
func New(s *scenario.Scenario, speed float64) (*Backend, error) {
	if !(speed >= minSpeed && speed <= maxSpeed) { // also for NaN
		return nil, fmt.Errorf("simulate %s: speed %v is out of range; want %v to %v", s.Name, speed, minSpeed, maxSpeed)
	}
	b := &Backend{
		node: sim.NewNode(s.Config), clock: clock{speed: speed},
		queues: make(map[sched.QueueID]*queue), processes: make(map[sched.ProcessID]*process),
	}
	var models []string
	for i, info := range b.node.Devices() {
		info.Device.Slice = b.clock.real(info.Device.Slice)
		info.Device.MinSharedSlice = b.clock.real(info.Device.MinSharedSlice)
		info.Device.StopTime = b.clock.real(info.Device.StopTime)
		b.devices = append(b.devices, device{info, s.Config.Devices[i].Model.TraceInterval > 0})
		models = append(models, fmt.Sprintf("%s is a simulated %s", info.Device.ID, info.Model))
	}
	b.reported = make([]sched.Time, len(b.devices))
	b.about = fmt.Sprintf("scenario %s at speed %v: %s", s.Name, speed, strings.Join(models, ", "))
	return b, nil
}

// Name implements hal.Backend.
func (b *Backend) Name() string { return "sim" }

// Start implements hal.Backend.
func (b *Backend) Start(ctx context.Context, h hal.Host) error {
	for _, d := range b.devices {
		h.DeviceFound(d)
	}
	b.mu.Lock()
	b.host = h
	b.clock.began = time.Now()
	b.mu.Unlock()
	go b.run(ctx)
	return nil
}

// Close implements hal.Backend. The simulated devices end with it, so there is nothing to
// give up.
func (b *Backend) Close() error { return nil }

// Checks implements hal.Backend.
func (b *Backend) Checks() []hal.Check {
	b.mu.Lock()
	defer b.mu.Unlock()
	checks := []hal.Check{{
		Name: "simulated devices", OK: true,
		Detail: b.about + ". No real device and no real process is controlled",
	}}
	if behind, slow := b.clock.tooSlow(time.Now()); slow {
		checks = append(checks, hal.Check{
			Name: "simulation speed", Detail: fmt.Sprintf("this machine is too slow: the simulated clock is %v behind", behind),
			Fix: "run giveway daemon with a lower --speed",
		})
	}
	for _, v := range b.node.Violations() {
		checks = append(checks, hal.Check{Name: "simulation", Detail: v, Fix: "report it: a queue was controlled in a way that must not happen"})
	}
	return checks
}

// device is a simulated device. It implements hal.Device and hal.Tracing.
type device struct {
	info    hal.Info
	tracing bool
}

func (d device) Info() hal.Info { return d.info }
func (d device) Tracing() bool  { return d.tracing }

var (
	_ hal.Backend = (*Backend)(nil)
	_ hal.Poller  = (*Backend)(nil)
	_ hal.Finder  = (*Backend)(nil)
	_ hal.Batcher = (*Backend)(nil)
)
