package shim

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// stopTime is about how long it takes to close a gate and to drain what was launched
// under a small bound.
const stopTime = 200 * time.Microsecond

// runtimes are the runtimes that a device can stand for, in the order of their bits in
// gw_page.runtimes.
var runtimes = []string{"cuda", "hip", "opencl", "queue", "levelzero"}

// device stands for all devices that processes use through one runtime, where no other
// backend knows more. It has no slices that could be set. It implements hal.Device.
type device string

// Info implements hal.Device.
func (d device) Info() hal.Info {
	return hal.Info{
		Device:  sched.Device{ID: sched.DeviceID(d), StopTime: stopTime},
		Backend: "shim", Model: "processes that use " + string(d), Index: -1,
	}
}
