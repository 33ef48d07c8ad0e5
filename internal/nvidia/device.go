// Package nvidia drives NVIDIA GPUs on a stock driver: it slices and interrupts
// the compute channel groups of other people's processes, through copies of the
// descriptors that those processes made them with.
//
// PREEMPT is offered as neither: a group that is preempted comes straight back.
package nvidia

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// What was measured on an H200 and is not known to differ elsewhere.
const (
	DefaultSlice = 2048 * time.Microsecond // of a compute group, as CUDA sets it
	leastSlice   = time.Microsecond        // 0 and 1 act alike
	// minTurn is well above what two groups need to make progress in turn: a
	// group that is put back spends its first 31 us on that.
	minTurn  = 200 * time.Microsecond
	stopTime = 800 * time.Microsecond
)

// File is an open control file that is ours to close.
type File interface {
	nvrm.Ioctler
	io.Closer
}

// Target is a compute group and what is needed to control it.
type Target struct {
	File      File
	Client    nvrm.Handle
	Group     nvrm.Handle
	Subdevice nvrm.Handle
	Channels  []nvrm.Handle
	Found     time.Duration // its slice before anybody here changed it; zero: that which it has
}

// Device is one GPU. It implements hal.Device.
type Device struct {
	info hal.Info

	mu      sync.Mutex
	targets map[sched.QueueID]Target
}

// New returns the GPU with that identity and name.
func New(uuid, model string) *Device {
	return &Device{
		info: hal.Info{
			Device: sched.Device{
				ID: sched.DeviceID(uuid), Slice: DefaultSlice, MinSharedSlice: minTurn, StopTime: stopTime,
			},
			Backend: "nvidia", Model: model,
		},
		targets: make(map[sched.QueueID]Target),
	}
}

// Info implements hal.Device.
func (d *Device) Info() hal.Info { return d.info }

// Offer says which group a queue is, so that Attach finds it.
func (d *Device) Offer(id sched.QueueID, t Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.targets[id] = t
}

// Attach implements hal.Device. It reads before it writes: a driver that answers
// anything unexpected is not written to at all. What it writes is what is there:
// the slice as it is, and channels enabled that are.
func (d *Device) Attach(s hal.Spec) (hal.Queue, error) {
	d.mu.Lock()
	t, ok := d.targets[s.Queue]
	delete(d.targets, s.Queue)
	d.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("attach queue %d: %w", s.Queue, hal.ErrGone)
	}
	g := group{target: t, rm: nvrm.Group{File: t.File, Client: t.Client, Handle: t.Group}}
	if err := g.recognise(); err != nil {
		return nil, fmt.Errorf("attach group %v of client %v: %w", t.Group, t.Client, classify(err))
	}
	slices, err := able(g.rm.SetTimeslice(g.found))
	if err != nil {
		return nil, fmt.Errorf("attach group %v: %w", t.Group, err)
	}
	interrupts := false
	if len(t.Channels) > 0 { // else they are somebody else's, and no call would prove a thing
		if interrupts, err = able(g.enable(true)); err != nil {
			return nil, fmt.Errorf("attach group %v: %w", t.Group, err)
		}
	}
	switch {
	case slices && interrupts:
		return &full{&g, slicer{&g}, interrupter{&g}}, nil
	case slices:
		return &sliced{&g, slicer{&g}}, nil
	case interrupts:
		return &interrupted{&g, interrupter{&g}}, nil
	}
	return &g, nil
}

// Adopt takes charge of a group that somebody else attached and may have
// changed, to undo that. It asks the driver nothing.
func Adopt(t Target, found time.Duration) hal.Queue {
	g := &group{target: t, found: found, rm: nvrm.Group{File: t.File, Client: t.Client, Handle: t.Group}}
	return &full{g, slicer{g}, interrupter{g}}
}

// Close implements hal.Device.
func (d *Device) Close() error { return nil }

// able reports whether a trial call shows that a thing can be done: yes, no, or
// it cannot be told because the group has gone.
func able(err error) (bool, error) {
	err = classify(err)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, hal.ErrGone):
		return false, err
	}
	return false, nil
}

// classify adds what an error of the driver means to the scheduler.
func classify(err error) error {
	var s nvrm.Status
	if !errors.As(err, &s) {
		return err
	}
	switch {
	case s.Gone():
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case s == nvrm.ErrNotSupported, s == nvrm.ErrInsufficientPermissions, s == nvrm.ErrInvalidCommand, s == nvrm.ErrInvalidParamStruct:
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	}
	return err
}
