package nvidia

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// group is a compute channel group under our control.
type group struct {
	target target
	rm     nvrm.Group
	found  time.Duration // its slice before it was first changed
}

// The queue types that attach returns. Each claims what attach has proved.
type (
	slicer      struct{ g *group }
	interrupter struct{ g *group }

	full struct {
		*group
		slicer
		interrupter
	}
	sliced struct {
		*group
		slicer
	}
	interrupted struct {
		*group
		interrupter
	}
)

// newGroup checks by reading that the target is a channel group with the given channels,
// and learns its slice.
func newGroup(t target) (*group, error) {
	g := &group{target: t, rm: nvrm.Group{File: t.File, Client: t.Client, Handle: t.Group}}
	if err := g.verify(); err != nil {
		return nil, fmt.Errorf("attach group %v of client %v: %w", t.Group, t.Client, classify(err))
	}
	return g, nil
}

func (g *group) verify() error {
	t := &g.target
	o, err := nvrm.Lookup(t.File, t.Client, t.Group)
	if err != nil {
		return err
	}
	if o.Class != nvrm.ClassChannelGroup {
		return fmt.Errorf("%v is of class %04x, not a channel group", t.Group, o.Class)
	}
	for _, c := range t.Channels {
		o, err := nvrm.Lookup(t.File, t.Client, c)
		if err != nil {
			return err
		}
		if !nvrm.IsChannel(o.Class) || o.Parent != t.Group {
			return fmt.Errorf("%v is of class %04x with parent %v, not a channel of the group", c, o.Class, o.Parent)
		}
	}
	if _, err := g.rm.ID(); err != nil {
		return err
	}
	if g.found, err = g.rm.Timeslice(); err != nil {
		return err
	}
	if t.Found > 0 {
		g.found = t.Found
	}
	if g.found < minSharedSlice {
		// An earlier program left it so and did not restore it. No driver sets such a slice.
		g.found = defaultSlice
	}
	return nil
}

// enable enables or disables the channels of the group.
func (g *group) enable(on bool) error {
	t := &g.target
	for batch := range slices.Chunk(t.Channels, nvrm.MaxChannels) {
		if err := nvrm.DisableChannels(t.File, t.Client, t.Subdevice, batch, !on, false); err != nil {
			return err
		}
	}
	return nil
}

// Close implements hal.Queue. It restores the group if it still exists and could be
// changed.
func (g *group) Close() error {
	if _, err := nvrm.Lookup(g.target.File, g.target.Client, g.target.Group); errors.Is(classify(err), hal.ErrGone) {
		return g.target.File.Close()
	}
	err := errors.Join(ignoreUnchangeable(g.rm.SetTimeslice(g.found)), ignoreUnchangeable(g.enable(true)))
	return errors.Join(err, g.target.File.Close())
}

// Abandon implements hal.Abandoner. It makes no call: our copy of the descriptor keeps the
// memory of the exited process on the GPU, so it is closed at once.
func (g *group) Abandon() error { return g.target.File.Close() }

// ignoreUnchangeable drops errors that mean there was nothing to restore.
func ignoreUnchangeable(err error) error {
	err = classify(err)
	if errors.Is(err, hal.ErrGone) || errors.Is(err, hal.ErrNotSupported) {
		return nil
	}
	return err
}

// SetSlice implements hal.Slicer.
func (s slicer) SetSlice(d time.Duration) error {
	switch {
	case d == 0:
		d = s.g.found
	case d == sched.MinSlice:
		d = minSlice
	}
	return classify(s.g.rm.SetTimeslice(max(d, minSlice)))
}

// Interrupt implements hal.Interrupter: a running kernel leaves the GPU and stays off it.
// After an error nothing has changed.
func (i interrupter) Interrupt() error {
	err := i.g.enable(false)
	if err != nil {
		err = errors.Join(err, ignoreUnchangeable(i.g.enable(true)))
	}
	return classify(err)
}

// Restore implements hal.Interrupter.
func (i interrupter) Restore() error { return classify(i.g.enable(true)) }
