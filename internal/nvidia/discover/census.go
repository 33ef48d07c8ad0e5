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

// A census is of the clients there are. RM says in silence who has a handle, so
// they are found by asking about every handle once, downward from the newest:
//
//	          base                newest            base|ClientMask
//	counted   |--------------------->|                    |
//	asked     |<--- 2, to the base --|<--- 3, if RM has --|
//	                                        counted round
//
// What a descriptor has is then one of a few. Clients that came later lie between
// the newest of then and the newest of now. One case is left out: a client that came
// later, after RM had counted round, and was moved on from a handle that was taken.
type census struct {
	open   func() (controlFile, error)
	within time.Duration // an update takes no longer
	newest nvrm.Handle   // one of our own, which is gone again; zero: none was made
	next   nvrm.Handle   // to be asked about; zero: nothing was, or it does not count
	left   int           // how many have not been asked about, next included
	live   []nvrm.Handle // the newest first
}

// How much is asked at once. A control takes 2 to 5 us on an H200, and this should
// be no slower: sweepMost is then a quarter of a second, and all there can be some
// four. Each question takes RM's lock, which programs want as well while they begin
// and end: hence the times, and hence the rest is left to the ticks.
const (
	sweepMost  = 1 << 16
	sweepLeast = 1 << 12 // past the base, in case RM has just counted round
	sweepAgain = 1 << 6  // of what was asked about last: they may have been in the making
	sweepTime  = 500 * time.Millisecond
	sweepShare = 20 // of the time between two ticks, one part in
)

// errUntold means that RM is not to be asked, or not to be believed.
var errUntold = errors.New("RM does not tell who has a client")

// update brings the census up to the newest client.
func (c *census) update() error {
	f, err := c.open()
	if err != nil {
		return fmt.Errorf("%w: %w", errUntold, err)
	}
	defer f.Close()
	last := c.newest
	if err := c.count(f); err != nil {
		c.next = 0
		return fmt.Errorf("%w: %w", errUntold, err)
	}
	since := int(c.newest-last) & nvrm.ClientMask
	if last == 0 || c.next == 0 || since > sweepMost {
		c.next, c.left, c.live = below(c.newest), nvrm.ClientMask, nil
		first := max(int(c.newest&nvrm.ClientMask), sweepLeast)
		return c.sweep(f, min(first, sweepMost), time.Now().Add(c.within))
	}
	recent := census{next: below(c.newest), left: since + sweepAgain}
	err = recent.sweep(f, recent.left, time.Now().Add(c.within))
	for _, h := range c.live {
		recent.add(h)
	}
	c.live = recent.live
	if recent.left > 0 {
		c.next = 0 // there is a gap: from the beginning, next time
	}
	return err
}

// count learns how far RM has counted, from a client of our own that is gone again
// at once. What RM says of others is believed if it was right about this one, while
// it was there and afterwards.
func (c *census) count(f nvrm.Ioctler) error {
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
		err = fmt.Errorf("our own had owner %d, and %d when it was freed", before, after)
	}
	return err
}

// below is the handle that RM gives out before h.
func below(h nvrm.Handle) nvrm.Handle { return h&^nvrm.ClientMask | (h-1)&nvrm.ClientMask }

// above is the one that it gives out next.
func above(h nvrm.Handle) nvrm.Handle { return h&^nvrm.ClientMask | (h+1)&nvrm.ClientMask }

// sweep asks about the next n handles, or as many as there is time for.
func (c *census) sweep(f nvrm.Ioctler, n int, until time.Time) error {
	for i := 0; i < n && c.left > 0; i++ {
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
		c.next = below(c.next)
		c.left--
	}
	return nil
}

func (c *census) add(h nvrm.Handle) {
	if !slices.Contains(c.live, h) {
		c.live = append(c.live, h)
	}
}

// goOn asks about some of what is left, and reports whether it found any.
func (c *census) goOn(within time.Duration) (bool, error) {
	f, err := c.open()
	if err != nil {
		return false, err
	}
	defer f.Close()
	had := len(c.live)
	err = c.sweep(f, sweepMost, time.Now().Add(within))
	return len(c.live) > had, err
}

// of returns the clients that a descriptor has, the oldest first.
func (c *census) of(f nvrm.Ioctler) ([]nvrm.Handle, error) {
	own, err := c.among(f)
	if err != nil || len(own) > 0 {
		return own, err
	}
	if err := c.update(); err != nil {
		return nil, err
	}
	return c.among(f)
}

// among looks at the live ones for those of a descriptor, and forgets who has gone.
func (c *census) among(f nvrm.Ioctler) (own []nvrm.Handle, err error) {
	c.live = slices.DeleteFunc(c.live, func(h nvrm.Handle) bool {
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
