package nvidia

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// Measured on an H200. Other GPUs are not known to differ.
const (
	defaultSlice = 2048 * time.Microsecond // of a compute group, as CUDA sets it
	minSlice     = time.Microsecond        // zero acts alike
	// minSharedSlice is well above what two groups need to make progress in turn. A group
	// that is switched in spends its first 31 us on that.
	minSharedSlice = 200 * time.Microsecond
	stopTime       = 800 * time.Microsecond
)

// deviceInfo describes a GPU to the daemon.
func deviceInfo(uuid, model string, index int) hal.Info {
	return hal.Info{
		Device: sched.Device{
			ID: sched.DeviceID(uuid), Slice: defaultSlice, MinSharedSlice: minSharedSlice, StopTime: stopTime,
		},
		Backend: "nvidia", Model: model, Index: index,
	}
}

// controlFile is an open control file that its holder closes.
type controlFile interface {
	nvrm.Ioctler
	io.Closer
}

// target is a compute group with everything that is needed to control it.
type target struct {
	File      controlFile
	Client    nvrm.Handle
	Group     nvrm.Handle
	Subdevice nvrm.Handle
	Channels  []nvrm.Handle // none for an MPS server, whose group runs its clients' channels
	Found     time.Duration // its slice before it was first changed; zero: the present one
}

// attach takes charge of a group and returns a queue and the slice that the group was
// found with. It reads before it writes: a group that looks wrong is not written to. What
// it writes is what is there already: the present slice, and enabled channels.
func attach(t target) (q hal.Queue, found time.Duration, err error) {
	g, err := newGroup(t)
	if err != nil {
		return nil, 0, err
	}
	slices, err := isSupported(g.rm.SetTimeslice(g.found))
	if err != nil {
		return nil, 0, fmt.Errorf("attach group %v: %w", t.Group, err)
	}
	interrupts := false
	if len(t.Channels) > 0 { // a call without channels would prove nothing
		if interrupts, err = isSupported(g.enable(true)); err != nil {
			return nil, 0, fmt.Errorf("attach group %v: %w", t.Group, err)
		}
	}
	switch {
	case slices && interrupts:
		return &full{g, slicer{g}, interrupter{g}}, g.found, nil
	case slices:
		return &sliced{g, slicer{g}}, g.found, nil
	case interrupts:
		return &interrupted{g, interrupter{g}}, g.found, nil
	}
	return g, g.found, nil
}

// observe is attach for a driver that must not be changed. The queue can do nothing, and
// closing it restores nothing.
func observe(t target) (q hal.Queue, found time.Duration, err error) {
	g, err := newGroup(t)
	if err != nil {
		return nil, 0, err
	}
	return &observed{t.File}, g.found, nil
}

// observed is a group that is not changed. Its Close closes our descriptor.
type observed struct{ controlFile }

// adopt returns a queue for a group that another process attached and may have changed, in
// order to undo that. It does not call the driver.
func adopt(t target, found time.Duration) hal.Queue {
	g := &group{target: t, found: found, rm: nvrm.Group{File: t.File, Client: t.Client, Handle: t.Group}}
	return &full{g, slicer{g}, interrupter{g}}
}

// isSupported interprets the result of a trial call. The error is not nil if the group has
// gone, so that the trial says nothing.
func isSupported(err error) (bool, error) {
	err = classify(err)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, hal.ErrGone):
		return false, err
	}
	return false, nil
}

// classify adds to an error of the driver what it means to the scheduler.
func classify(err error) error {
	if nvrm.IsGone(err) {
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	}
	for _, s := range []nvrm.Status{nvrm.ErrNotSupported, nvrm.ErrInsufficientPermissions, nvrm.ErrInvalidCommand, nvrm.ErrInvalidParamStruct} {
		if errors.Is(err, s) {
			return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
		}
	}
	return err
}
