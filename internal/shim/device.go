package shim

import (
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// stopTime is about how long a gate takes to be closed and what has been launched
// under a small bound to finish.
const stopTime = 200 * time.Microsecond

// Device stands for the devices that programs with one runtime use, where nobody
// knows more of them than the shim. Its time is not shared in slices that anybody
// could set. It implements hal.Device.
type Device struct {
	info hal.Info

	mu    sync.Mutex
	gates map[sched.QueueID]*Gate
}

// New returns the device of a runtime.
func New(runtime string) *Device {
	return &Device{
		info: hal.Info{
			Device:  sched.Device{ID: sched.DeviceID(runtime), StopTime: stopTime},
			Backend: "shim", Model: "programs that use " + runtime,
		},
		gates: make(map[sched.QueueID]*Gate),
	}
}

// Info implements hal.Device.
func (d *Device) Info() hal.Info { return d.info }

// Offer says which gate a queue is behind, so that Attach finds it.
func (d *Device) Offer(id sched.QueueID, g *Gate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gates[id] = g
}

// Attach implements hal.Device.
func (d *Device) Attach(s hal.Spec) (hal.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.gates[s.Queue]
	delete(d.gates, s.Queue)
	if g == nil {
		return nil, fmt.Errorf("attach queue %d: %w", s.Queue, hal.ErrGone)
	}
	return g.Attach(nil), nil
}

// Close implements hal.Device.
func (d *Device) Close() error { return nil }
