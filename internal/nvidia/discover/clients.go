package discover

import (
	"cmp"
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
	budget    time.Duration        // longest time of an update
	newest    nvrm.Handle          // the counter: the handle of a client of ours, freed again; zero: not read yet
	verified  bool                 // the answers of OwnerOf were right about a client of ours
	verify    time.Time            // not verified: no attempt before this time
	next      nvrm.Handle          // the next handle to ask about; zero: start again
	remaining int                  // handles to ask about, next included
	handles   []nvrm.Handle        // clients that exist, those to ask about first at the front
	listed    map[nvrm.Handle]bool // those of handles
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
	filterShare  = 4  // filterOwned takes one part in so many of the time of an update
)

// errOwnerUnknown means that OwnerOf does not work with this driver, or gives wrong answers.
var errOwnerUnknown = errors.New("the driver does not tell which file owns a client")

// errUnfinished means that there was no time to ask about all clients. The next call goes on.
var errUnfinished = errors.New("there are too many clients to ask about at once")

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
		c.listed = nil
		first := max(int(c.newest&nvrm.ClientMask), minAsk)
		return c.ask(f, min(first, maxAsk), time.Now().Add(c.budget))
	}
	recent := clientList{next: step(c.newest, -1), remaining: since + askAgain}
	err = recent.ask(f, recent.remaining, time.Now().Add(c.budget))
	made := slices.DeleteFunc(recent.handles, func(h nvrm.Handle) bool { return c.listed[h] })
	earlier := c.handles
	c.handles = nil
	for _, h := range made {
		c.add(h)
	}
	c.handles = append(c.handles, earlier...)
	if recent.remaining > 0 {
		c.next = 0 // not all were asked about: start again at the next update
	}
	return err
}

// ownerOf returns the owner of a client without a line in the kernel's log. The error wraps
// errOwnerUnknown if OwnerOf does not work.
func (c *clientList) ownerOf(f nvrm.Ioctler, client nvrm.Handle) (nvrm.Owner, error) {
	if !c.verified && time.Now().Before(c.verify) {
		return nvrm.NoFile, errOwnerUnknown
	}
	if !c.verified {
		c.verify = time.Now().Add(retryAfter)
		own, err := c.open()
		if err != nil {
			return nvrm.NoFile, fmt.Errorf("%w: %w", errOwnerUnknown, err)
		}
		defer own.Close()
		if _, err := makeClient(own); err != nil {
			return nvrm.NoFile, fmt.Errorf("%w: %w", errOwnerUnknown, err)
		}
		c.verified = true
	}
	return nvrm.OwnerOf(f, client)
}

// readCounter learns RM's counter from a client of our own.
func (c *clientList) readCounter(f nvrm.Ioctler) error {
	h, err := makeClient(f)
	if h != 0 {
		c.newest = h
	}
	c.verified = err == nil
	return err
}

// makeClient makes a client of our own, frees it and returns its handle. The answers of OwnerOf
// about other clients are trusted if those about this one were right, before and after it was
// freed; the error says that they were not.
func makeClient(f nvrm.Ioctler) (nvrm.Handle, error) {
	h, err := nvrm.NewClient(f)
	if err != nil {
		return 0, err
	}
	before, err := nvrm.OwnerOf(f, h)
	if freed := nvrm.Free(f, h, 0, h); err == nil {
		err = freed
	}
	if err != nil {
		return h, err
	}
	after, err := nvrm.OwnerOf(f, h)
	if err == nil && (before != nvrm.ThisFile || after != nvrm.NoFile) {
		err = fmt.Errorf("owner of a client of ours: got %v, and %v after it was freed", before, after)
	}
	return h, err
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
	if c.listed == nil {
		c.listed = map[nvrm.Handle]bool{}
	}
	if !c.listed[h] {
		c.listed[h] = true
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
	own, err := c.filterOwned(f, time.Now().Add(c.budget/filterShare))
	if len(own) > 0 || err != nil && !errors.Is(err, errUnfinished) {
		return own, err
	}
	if err := c.update(); err != nil {
		return nil, err
	}
	return c.filterOwned(f, time.Now().Add(c.budget/filterShare))
}

// filterOwned returns the listed clients of a descriptor, and removes clients that no longer
// exist from the list. If it has found none in time, the error is errUnfinished.
func (c *clientList) filterOwned(f nvrm.Ioctler, until time.Time) (own []nvrm.Handle, err error) {
	exist := make([]nvrm.Handle, 0, len(c.handles))
	asked := 0
	for _, h := range c.handles {
		if asked%64 == 63 && time.Now().After(until) {
			err = errUnfinished
			break
		}
		owner, failed := nvrm.OwnerOf(f, h)
		if err = failed; err != nil {
			break
		}
		asked++
		switch owner {
		case nvrm.NoFile:
			delete(c.listed, h)
			continue
		case nvrm.ThisFile:
			own = append(own, h)
		}
		exist = append(exist, h)
	}
	c.handles = append(c.handles[asked:], exist...) // the next call begins with the others
	if len(own) > 0 && errors.Is(err, errUnfinished) {
		err = nil
	}
	age := func(h nvrm.Handle) nvrm.Handle { return (c.newest - h) & nvrm.ClientMask }
	slices.SortFunc(own, func(a, b nvrm.Handle) int { return cmp.Compare(age(b), age(a)) })
	return own, err
}
