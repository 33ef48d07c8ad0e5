package nvidia

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// group is a compute channel group with everything that is needed to control it. As a
// queue it can be sliced and interrupted. The guardian gets it as JSON, with a copy of the
// descriptor.
type group struct {
	file      controlFile
	Client    nvrm.Handle   `json:"client"`
	Handle    nvrm.Handle   `json:"group"`
	Subdevice nvrm.Handle   `json:"subdevice"`
	Channels  []nvrm.Handle `json:"channels"`             // none for an MPS server, whose group runs its clients' channels
	Found     time.Duration `json:"found_ns"`             // its slice before it was first changed; zero: not read yet
	KeepSlice bool          `json:"keep_slice,omitempty"` // the driver does not let its slice be set, so there is none to restore

	tries    int   // earlier attempts to attach it that ended with a transient error
	unproved error // a transient error despite which it was attached

	set   atomic.Int64             // its slice in ns, as SetSlice set it; zero: never, or a call is under way
	exist []nvrm.Handle            // those of Channels that were not freed; nil: all
	use   atomic.Pointer[groupUse] // nil: it was not changed
}

// controlFile is an open control file that its holder closes.
type controlFile interface {
	nvrm.Ioctler
	io.Closer
}

// What attach returns for a group that the driver does not let us control fully.
type (
	closer interface {
		hal.Queue
		hal.Abandoner
	}
	sliceOnly struct {
		closer
		hal.Slicer
	}
	interruptOnly struct {
		closer
		hal.Interrupter
	}
	closeOnly struct{ closer }
)

func newGroup(g *discover.Group) *group {
	return &group{file: g.File, Client: g.Client, Handle: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels}
}

func (g *group) rm() nvrm.Group {
	return nvrm.Group{File: g.file, Client: g.Client, Handle: g.Handle}
}

// attach returns a queue that claims what the driver lets us do to the group. It reads
// before it writes: a group that looks wrong is not written to. What it writes is what is
// there already: the present slice, and enabled channels. After a transient error it can be
// tried again, and g.tries says how often it was.
func (g *group) attach() (hal.Queue, error) {
	if err := g.verify(); err != nil {
		return nil, err
	}
	slices, err := isSupported(g.rm().SetTimeslice(g.Found))
	interrupts := false
	if !errors.Is(err, hal.ErrGone) && len(g.Channels) > 0 { // a call without channels would prove nothing
		var failed error
		interrupts, failed = isSupported(g.enable(true))
		err = errors.Join(err, failed)
	}
	if err != nil && (errors.Is(err, hal.ErrGone) || !slices && !interrupts || g.tries < maxTries(err)) {
		return nil, fmt.Errorf("attach group %v: %w", g.Handle, err)
	}
	g.unproved = err
	// What was never changed is not restored: the driver may refuse that for ever.
	if g.KeepSlice = !slices; !interrupts {
		g.Channels, g.exist = nil, nil
	}
	switch {
	case slices && interrupts:
		return g, nil
	case slices:
		return sliceOnly{g, g}, nil
	case interrupts:
		return interruptOnly{g, g}, nil
	}
	return closeOnly{g}, nil
}

// observe is attach for a driver that must not be changed. The queue is the file alone: it
// can do nothing, and closing it restores nothing.
func (g *group) observe() (hal.Queue, error) { return g.file, g.verify() }

// verify checks by reading that this is a channel group with these channels, and reads its
// slice.
func (g *group) verify() error {
	if err := g.read(); err != nil {
		return fmt.Errorf("attach group %v of client %v: %w", g.Handle, g.Client, classify(err))
	}
	return nil
}

func (g *group) read() error {
	o, err := nvrm.Lookup(g.file, g.Client, g.Handle)
	if err != nil {
		return err
	}
	if o.Class != nvrm.ClassChannelGroup {
		return fmt.Errorf("%v is of class %04x, not a channel group", g.Handle, o.Class)
	}
	for _, c := range g.Channels {
		o, err := nvrm.Lookup(g.file, g.Client, c)
		if err != nil {
			return err
		}
		if !nvrm.IsChannel(o.Class) || o.Parent != g.Handle {
			return fmt.Errorf("%v is of class %04x with parent %v, not a channel of the group", c, o.Class, o.Parent)
		}
	}
	if _, err := g.rm().ID(); err != nil {
		return err
	}
	slice, err := g.rm().Timeslice()
	if g.Found == 0 {
		g.Found = slice
	}
	if g.Found < minSharedSlice {
		// An earlier program left it so and did not restore it. No driver sets such a slice.
		g.Found = defaultSlice
	}
	return err
}

// Close implements hal.Queue. It restores the group if it still exists and could be
// changed.
func (g *group) Close() error {
	if _, err := nvrm.Lookup(g.file, g.Client, g.Handle); nvrm.IsGone(err) {
		return g.file.Close()
	}
	var err error
	if !g.KeepSlice {
		err = ignoreUnchangeable(g.rm().SetTimeslice(g.Found))
	}
	return errors.Join(err, ignoreUnchangeable(g.enable(true)), g.file.Close())
}

// Abandon implements hal.Abandoner. It makes no call: our copy of the descriptor keeps the
// memory of the exited process on the GPU, so it is closed at once.
func (g *group) Abandon() error { return g.file.Close() }

// SetSlice implements hal.Slicer.
func (g *group) SetSlice(d time.Duration) error {
	switch {
	case d == 0:
		d = g.Found
	case d == sched.MinSlice:
		d = minSlice
	}
	d = max(d, minSlice)
	began := time.Now()
	g.set.Store(0)
	err := g.rm().SetTimeslice(d)
	if err == nil {
		g.set.Store(int64(d.Truncate(time.Microsecond)))
	}
	g.change(func(u *groupUse) {
		u.oldSlice, u.slice, u.sliceFrom, u.sliceTo = u.slice, d, began, time.Now()
	})
	return classify(err)
}

// Interrupt implements hal.Interrupter: a running kernel leaves the GPU and stays off it.
// After an error all channels are enabled, unless the error wraps hal.ErrPartial.
func (g *group) Interrupt() error {
	began := time.Now()
	if err := classify(g.enable(false)); err != nil {
		if failed := ignoreUnchangeable(g.enable(true)); failed != nil {
			err = fmt.Errorf("%w; enable its channels again: %w: %w", err, failed, hal.ErrPartial)
		}
		return err
	}
	g.change(func(u *groupUse) { u.stopFrom, u.stopTo = began, time.Time{} })
	return nil
}

// Restore implements hal.Interrupter.
func (g *group) Restore() error {
	err := g.enable(true)
	g.change(func(u *groupUse) { u.stopTo = time.Now() })
	return classify(err)
}

// change notes how the group is controlled now. The calls of a group follow each other.
func (g *group) change(edit func(*groupUse)) {
	u := groupUse{slice: g.Found}
	if old := g.use.Load(); old != nil {
		u = *old
	}
	edit(&u)
	g.use.Store(&u)
}

// isSupported interprets the result of a trial call. The error is not nil if the trial says
// nothing, because the group has gone or the driver could not make the call now.
func isSupported(err error) (bool, error) {
	err = classify(err)
	if err == nil || errors.Is(err, hal.ErrGone) || isTransient(err) {
		return err == nil, err
	}
	return false, nil
}

// isTransient reports whether err is an answer of the driver that may be another one later, such as
// that it is busy. The parameters of a trial are the same at every attempt, so ErrInvalidArgument is
// not. A sandbox that filters the driver's calls answers with an error number of its own.
func isTransient(err error) bool {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Temporary() || errno == syscall.EBUSY || errno == syscall.ENOMEM || errno == syscall.EIO
	}
	return errors.As(err, new(nvrm.Status)) && !errors.Is(err, hal.ErrGone) && !errors.Is(err, hal.ErrNotSupported) && !errors.Is(err, nvrm.ErrInvalidArgument)
}

// How often attach is tried again because of a transient error. Then the group is attached with what
// the other trial has proved: the driver may give the same answer for ever, and a slice that can be
// set must not be left unused.
const (
	busyTries    = 12 // the driver says that it is busy: about three minutes
	unclearTries = 4  // another answer, which may well be final: about four seconds
)

// maxTries returns how often attach is tried again because of a transient error.
func maxTries(err error) int {
	busy := errors.As(err, new(syscall.Errno))
	for _, s := range []nvrm.Status{nvrm.ErrBusyRetry, nvrm.ErrNoMemory, nvrm.ErrStateInUse, nvrm.ErrTimeout} {
		busy = busy || errors.Is(err, s)
	}
	if busy {
		return busyTries
	}
	return unclearTries
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

// ignoreUnchangeable drops errors that mean there was nothing to restore.
func ignoreUnchangeable(err error) error {
	err = classify(err)
	if errors.Is(err, hal.ErrGone) || errors.Is(err, hal.ErrNotSupported) {
		return nil
	}
	return err
}
