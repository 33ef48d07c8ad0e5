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
	target Target
	rm     nvrm.Group
	found  time.Duration // its slice when it was attached
}

// What Attach proved decides which of these it returns.
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

// recognise reads what should be there, and refuses anything else.
func (g *group) recognise() error {
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
			return fmt.Errorf("%v is of class %04x and belongs to %v, not a channel of it", c, o.Class, o.Parent)
		}
	}
	if _, err := g.rm.ID(); err != nil {
		return err
	}
	g.found, err = g.rm.Timeslice()
	if err == nil && g.found > 10*time.Second {
		err = fmt.Errorf("it has a time slice of %v", g.found)
	}
	if t.Found > 0 {
		g.found = t.Found
	}
	if g.found < minTurn {
		// Left so by somebody who did not clean up: nobody's default.
		g.found = DefaultSlice
	}
	return err
}

// Found is the slice that the group had before anybody here changed it.
func (g *group) Found() time.Duration { return g.found }

// enable lets the group's channels run, or stops them.
func (g *group) enable(on bool) error {
	t := &g.target
	for batch := range slices.Chunk(t.Channels, nvrm.MaxChannels) {
		if err := nvrm.DisableChannels(t.File, t.Client, t.Subdevice, batch, !on, false); err != nil {
			return err
		}
	}
	return nil
}

// Close implements hal.Queue. Of a group that has gone, or that could never be
// changed, there is nothing to undo.
func (g *group) Close() error {
	if _, err := nvrm.Lookup(g.target.File, g.target.Client, g.target.Group); errors.Is(classify(err), hal.ErrGone) {
		return g.target.File.Close()
	}
	err := errors.Join(undone(g.rm.SetTimeslice(g.found)), undone(g.enable(true)))
	return errors.Join(err, g.target.File.Close())
}

// Abandon gives up a group whose process has gone. It is not asked to do
// anything: our copy of the descriptor is what keeps its memory on the GPU.
func (g *group) Abandon() error { return g.target.File.Close() }

func undone(err error) error {
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
		d = leastSlice
	}
	return classify(s.g.rm.SetTimeslice(max(d, leastSlice)))
}

// Interrupt implements hal.Interrupter: a running kernel leaves the GPU and stays
// off it. If it fails, nothing has changed.
func (i interrupter) Interrupt() error {
	err := i.g.enable(false)
	if err != nil {
		err = errors.Join(err, undone(i.g.enable(true)))
	}
	return classify(err)
}

// Restore implements hal.Interrupter.
func (i interrupter) Restore() error { return classify(i.g.enable(true)) }
