package discover

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// controlFile is a control file of our own: a *nvrm.File, or a test's.
type controlFile interface {
	nvrm.Ioctler
	Close() error
}

// clientList lists the clients that exist. nvrm.OwnerOf tells about one handle without a
// line in the kernel's log, so clientList asks about every handle once, downward from the
// newest:
//
//	          base                newest            base|ClientMask
//	counter   |--------------------->|                    |
//	asked     |<--- first -----------|<--- then, if ------|
//	                                    RM's counter has wrapped
//
// The client of a descriptor is then one of a few. Clients that are made later lie between
// the old and the new value of the counter. One case is not covered: a client that is made
// later, after the counter has wrapped, at a handle that was skipped to.
type clientList struct {
	open      func() (controlFile, error)
	budget    time.Duration // longest time of an update
	newest    nvrm.Handle   // the counter: the handle of a client of ours, freed again; zero: not read yet
	next      nvrm.Handle   // the next handle to ask about; zero: start again
	remaining int           // handles to ask about, next included
	handles   []nvrm.Handle // clients that exist, newest first
}

// How many handles are asked about at once. A control takes 2 to 5 us on an H200, and
// OwnerOf should take no longer: maxAsk handles then take a quarter of a second, and all
// handles four seconds. Each call takes RM's lock, which processes need while they start
// and exit. So an update has a time limit, and the rest is spread over later ticks.
const (
	maxAsk       = 1 << 16
	minAsk       = 1 << 12 // even below the base, in case the counter has just wrapped
	askAgain     = 1 << 6  // handles of the last update, whose clients may just have been being made
	updateBudget = 500 * time.Millisecond
	resumeShare  = 20 // resume takes one part in so many of the time between two ticks
)

// errOwnerUnknown means that OwnerOf does not work with this driver, or gives wrong answers.
var errOwnerUnknown = errors.New("the driver does not tell which file owns a client")

// update adds the clients that were made since the last update.
func (c *clientList) update() error {
	f, err := c.open()
	if err != nil {
		return fmt.Errorf("%w: %w", errOwnerUnknown, err)
	}
	defer f.Close()
	last := c.newest
	if err := c.readCounter(f); err != nil {
		c.next = 0
		return fmt.Errorf("%w: %w", errOwnerUnknown, err)
	}
	since := int(c.newest-last) & nvrm.ClientMask
	if last == 0 || c.next == 0 || since > maxAsk {
		c.next, c.remaining, c.handles = step(c.newest, -1), nvrm.ClientMask, nil
		first := max(int(c.newest&nvrm.ClientMask), minAsk)
		return c.ask(f, min(first, maxAsk), time.Now().Add(c.budget))
	}
	recent := clientList{next: step(c.newest, -1), remaining: since + askAgain}
	err = recent.ask(f, recent.remaining, time.Now().Add(c.budget))
	for _, h := range c.handles {
		recent.add(h)
	}
	c.handles = recent.handles
	if recent.remaining > 0 {
		c.next = 0 // not all were asked about: start again at the next update
	}
	return err
}

// readCounter learns RM's counter from a client of our own, which it frees at once. The
// answers of OwnerOf about other clients are trusted if those about this one were right,
// before and after it was freed.
func (c *clientList) readCounter(f nvrm.Ioctler) error {
	h, err := nvrm.NewClient(f)
	if err != nil {
		return err
	}
	c.newest = h
	before, err := nvrm.OwnerOf(f, h)
	if freed := nvrm.Free(f, h, 0, h); err == nil {
		err = freed
	}
	if err != nil {
		return err
	}
	after, err := nvrm.OwnerOf(f, h)
	if err == nil && (before != nvrm.ThisFile || after != nvrm.NoFile) {
		err = fmt.Errorf("owner of a client of ours: got %v, and %v after it was freed", before, after)
	}
	return err
}

// step returns the handle that RM's counter gives out n clients after h, or before it.
func step(h nvrm.Handle, n int) nvrm.Handle {
	return h&^nvrm.ClientMask | (h+nvrm.Handle(n))&nvrm.ClientMask
}

// ask asks about the next n handles, or as many as there is time for.
func (c *clientList) ask(f nvrm.Ioctler, n int, until time.Time) error {
	for i := 0; i < n && c.remaining > 0; i++ {
		if i%64 == 63 && time.Now().After(until) {
			return nil
		}
		owner, err := nvrm.OwnerOf(f, c.next)
		if err != nil {
			return err
		}
		if owner != nvrm.NoFile {
			c.add(c.next)
		}
		c.next = step(c.next, -1)
		c.remaining--
	}
	return nil
}

func (c *clientList) add(h nvrm.Handle) {
	if !slices.Contains(c.handles, h) {
		c.handles = append(c.handles, h)
	}
}

// resume asks about some of the remaining handles. It returns true if it found a client.
func (c *clientList) resume(within time.Duration) (bool, error) {
	f, err := c.open()
	if err != nil {
		return false, err
	}
	defer f.Close()
	had := len(c.handles)
	err = c.ask(f, maxAsk, time.Now().Add(within))
	return len(c.handles) > had, err
}

// ownedBy returns the clients of a descriptor, oldest first.
func (c *clientList) ownedBy(f nvrm.Ioctler) ([]nvrm.Handle, error) {
	own, err := c.filterOwned(f)
	if err != nil || len(own) > 0 {
		return own, err
	}
	if err := c.update(); err != nil {
		return nil, err
	}
	return c.filterOwned(f)
}

// filterOwned returns the listed clients of a descriptor, and removes clients that no longer
// exist from the list.
func (c *clientList) filterOwned(f nvrm.Ioctler) (own []nvrm.Handle, err error) {
	c.handles = slices.DeleteFunc(c.handles, func(h nvrm.Handle) bool {
		if err != nil {
			return false
		}
		var owner nvrm.Owner
		owner, err = nvrm.OwnerOf(f, h)
		if owner == nvrm.ThisFile {
			own = append(own, h)
		}
		return err == nil && owner == nvrm.NoFile
	})
	slices.Reverse(own)
	return own, err
}
