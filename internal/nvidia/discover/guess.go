package discover

import (
	"errors"
	"maps"
	"slices"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// Limits of guessing. Each wrong guess adds a line of about 100 bytes to the kernel's log. A
// log of the usual size holds a few thousand lines, so the guesses of a whole run are
// limited.
const (
	guessNear       = 32   // handles on either side of clients that were found
	guessNewer      = 704  // handles down from the newest
	guessFirst      = 256  // handles up from the first
	maxGuesses      = 1024 // for one descriptor: all of the above
	maxGuessesTotal = 4096 // for all descriptors
)

// clientsOf returns the clients of a descriptor of which nothing is known. It guesses handles
// only if OwnerOf does not work.
func (w *Watcher) clientsOf(f nvrm.Ioctler) ([]nvrm.Handle, error) {
	own, err := w.allClients.ownedBy(f)
	switch {
	case errors.Is(err, errOwnerUnknown):
		if !w.warnedGuesses {
			w.warnedGuesses = true
			w.log.Warn("client handles must be guessed: each wrong guess adds a line to the kernel's log", "limit", maxGuessesTotal, "reason", err)
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

// mayName reports whether a control through a descriptor may name a client that is likely its
// own. Such clients come from the memory of processes, and a control that names one which does
// not exist adds a line to the kernel's log. Where OwnerOf does not work, they count as guesses,
// except the client that the descriptor was found to have.
func (w *Watcher) mayName(f nvrm.Ioctler, client, known nvrm.Handle) bool {
	owner, err := w.allClients.ownerOf(f, client)
	if err == nil {
		return owner == nvrm.ThisFile
	}
	return client == known || w.guessesMade < maxGuessesTotal
}

// guessClient finds the client of a descriptor by trying likely handles.
func (w *Watcher) guessClient(f nvrm.Ioctler) (nvrm.Handle, error) {
	guesses := w.guessOrder()
	guesses = guesses[:min(len(guesses), max(maxGuessesTotal-w.guessesMade, 0), maxGuesses)]
	client, wrong, err := nvrm.FindClient(f, guesses)
	w.guessesMade += wrong
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

// guessOrder returns the handles to guess, likeliest first, each once: next to those found,
// for processes often start together; down from the newest; up from the first. Handles that
// other descriptors own come last: they may have been freed a moment ago.
func (w *Watcher) guessOrder() (order []nvrm.Handle) {
	listed := maps.Clone(w.knownClients)
	add := func(h nvrm.Handle) {
		if listed[h] == 0 {
			listed[h]++
			order = append(order, h)
		}
	}
	if w.highest != 0 {
		for i := range guessNear {
			add(step(w.highest, 1+i))
		}
		for i := range guessNear {
			add(step(w.lowest, -1-i))
		}
	}
	if newest := w.allClients.newest; newest != 0 {
		for i := range guessNewer {
			add(step(newest, -1-i))
		}
	}
	for _, h := range nvrm.FirstClients(guessFirst) {
		add(h)
	}
	return append(order, slices.Sorted(maps.Keys(w.knownClients))...)
}

// findOlder asks about further handles while a process holds the control device without a
// known client, and makes the loop scan those processes again if a client was found. It returns
// true if handles remain.
func (w *Watcher) findOlder() bool {
	if w.allClients.remaining == 0 || w.allClients.next == 0 {
		return false
	}
	var without []*opener
	for _, h := range w.sortedOpeners() {
		unknown := slices.ContainsFunc(slices.Collect(maps.Values(h.files)), func(c *controlFD) bool { return c.client == 0 && !c.foreign })
		if unknown && len(h.groups) == 0 && !h.sharesGroup && h.process.Start <= w.tracedSince {
			without = append(without, h)
		}
	}
	if len(without) == 0 && !w.hasOlderUnkept() {
		return false
	}
	found, err := w.allClients.resume(w.config.Poll / resumeShare)
	if err != nil {
		w.log.Debug("cannot look for older clients", "error", err)
	}
	if !found {
		return err == nil
	}
	for _, h := range without {
		w.scanAnew(h.process.PID)
	}
	w.queueUnkept(true)
	return err == nil
}

// hasOlderUnkept reports whether nothing is kept of a process whose calls were not all traced.
func (w *Watcher) hasOlderUnkept() bool {
	for _, u := range w.unkept {
		if u.start <= w.tracedSince {
			return true
		}
	}
	return false
}
