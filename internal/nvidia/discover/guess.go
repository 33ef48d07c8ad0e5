package discover

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// Bounds of guessing aloud. Each wrong guess is a line of some 100 bytes in the
// kernel's log, and a log of the usual size has room for a few thousand: it is not
// to be filled with ours, however many programs and however long we run.
const (
	guessNear  = 32   // on either side of clients that were found
	guessNewer = 704  // down from the newest
	guessFirst = 256  // up from the first
	maxGuesses = 1024 // of one descriptor: all of these
	maxNoise   = 4096 // of all descriptors
)

// clientsOf returns the clients of a descriptor of which nothing is known. Where RM
// tells who has a client, it is asked. Where it does not, handles are guessed at.
func (w *Watcher) clientsOf(f nvrm.Ioctler) ([]nvrm.Handle, error) {
	own, err := w.census.of(f)
	switch {
	case errors.Is(err, errUntold):
		if !w.untold {
			w.untold = true
			w.log.Warn("clients must be guessed at, which fills the kernel's log", "most", maxNoise, "reason", err)
		}
		client, err := w.guessClient(f)
		if err != nil {
			return nil, err
		}
		return []nvrm.Handle{client}, nil
	case err == nil && len(own) == 0:
		err = nvrm.ErrInvalidClient
	}
	return own, err
}

// guessClient finds the client of a descriptor by trying handles that it may have.
func (w *Watcher) guessClient(f nvrm.Ioctler) (nvrm.Handle, error) {
	client, wrong, err := nvrm.FindClient(f, first(w.guessed(), min(maxNoise-w.noise, maxGuesses)))
	w.noise += wrong
	w.guesses.Add(uint64(wrong))
	if err != nil {
		return 0, err
	}
	if w.lowest == 0 || client < w.lowest {
		w.lowest = client
	}
	w.highest = max(w.highest, client)
	return client, nil
}

// guessed are the handles that are worth a guess, the likeliest first, each once:
// beside those found, for programs come together; the newest, downward; the first
// that RM gave out. Clients of others are left for last: they may have gone a
// moment ago.
func (w *Watcher) guessed() iter.Seq[nvrm.Handle] {
	return func(yield func(nvrm.Handle) bool) {
		tried := maps.Clone(w.clients)
		from := func(h nvrm.Handle, n int, up bool) bool {
			for ; n > 0; n-- {
				if tried[h] == 0 {
					tried[h]++
					if !yield(h) {
						return false
					}
				}
				if up {
					h = above(h)
				} else {
					h = below(h)
				}
			}
			return true
		}
		if w.highest != 0 && !(from(above(w.highest), guessNear, true) && from(below(w.lowest), guessNear, false)) {
			return
		}
		if w.census.newest != 0 && !from(below(w.census.newest), guessNewer, false) {
			return
		}
		for h := range nvrm.FirstClients(guessFirst) {
			if !from(h, 1, true) {
				return
			}
		}
		for _, h := range slices.Sorted(maps.Keys(w.clients)) {
			if !yield(h) {
				return
			}
		}
	}
}

// first cuts a sequence off.
func first(all iter.Seq[nvrm.Handle], n int) iter.Seq[nvrm.Handle] {
	return func(yield func(nvrm.Handle) bool) {
		for h := range all {
			if n--; n < 0 || !yield(h) {
				return
			}
		}
	}
}

// seekOlder asks on where the first question was cut short, while somebody holds
// the control device of whom no client is known, and looks at those again when
// there is something new. Whether there is more to ask.
func (w *Watcher) seekOlder() bool {
	if w.census.left == 0 || w.census.next == 0 {
		return false
	}
	var wanting []*holder
	for _, h := range w.sortedHolders() {
		unknown := slices.ContainsFunc(slices.Collect(maps.Values(h.files)), func(c *control) bool { return c.client == 0 })
		if unknown && len(h.groups) == 0 && !h.shares && h.process.Start <= w.traced {
			wanting = append(wanting, h)
		}
	}
	if len(wanting) == 0 {
		return false
	}
	news, err := w.census.goOn(w.config.Poll / sweepShare)
	if err != nil {
		w.log.Debug("clients could not be asked about", "error", err)
	}
	if !news {
		return err == nil
	}
	for _, h := range wanting {
		for _, c := range h.files {
			c.tries, c.retry = 0, time.Time{}
		}
		w.scan(h.process.PID, nil, true)
	}
	return err == nil
}
