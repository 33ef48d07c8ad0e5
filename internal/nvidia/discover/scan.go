package discover

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// A holder is a process that has the control device open.
type holder struct {
	process proc.Process
	pidfd   *proc.Handle
	files   map[int]*control     // by its descriptors
	groups  map[groupName]*found // reported, and not gone
	shares  bool                 // it holds a group that was reported of another process
	since   time.Time
	next    time.Time // when polling looks at it again
}

// control is what is known of one descriptor.
type control struct {
	client nvrm.Handle   // zero: not known
	known  []nvrm.Handle // objects that calls have named
	tries  int           // rounds of guessing
	retry  time.Time     // not before
}

const (
	maxTries      = 2 // a descriptor without a client may cost maxGuesses each time
	retryAfter    = 10 * time.Second
	maxCandidates = 4
	maxAncestors  = 16
)

func (h *holder) touches(client, object nvrm.Handle) bool {
	for name, g := range h.groups {
		if name.client == client && g.touches(object) {
			return true
		}
	}
	return false
}

// scan looks at one process: what it holds that was not known is reported, what
// it no longer holds is gone. hints save guessing; without mayGuess there is
// none.
func (w *Watcher) scan(pid int, hints []hint, mayGuess bool) {
	h, fds := w.holderOf(pid)
	if h == nil {
		return
	}
	for fd, c := range h.files {
		if !slices.Contains(fds, fd) {
			w.setClient(c, 0)
			delete(h.files, fd)
		}
	}
	for _, fd := range fds {
		if h.files[fd] == nil {
			h.files[fd] = &control{}
		}
	}
	// Descriptors of which something is known come first: once one has led to a
	// compute group, no others are guessed at. CUDA has one client a process.
	isKnown := func(fd int) bool {
		return h.files[fd].client != 0 || slices.ContainsFunc(hints, func(t hint) bool { return t.fd == fd })
	}
	order := slices.Clone(fds)
	slices.SortStableFunc(order, func(a, b int) int { return btoi(isKnown(b)) - btoi(isKnown(a)) })
	var done []int
	seen := map[groupName]bool{}
	for _, fd := range order {
		if w.stopped() || w.holders[pid] != h {
			return
		}
		if slices.ContainsFunc(done, func(d int) bool { same, _ := sameFile(pid, d, pid, fd); return same }) {
			continue // a dup
		}
		done = append(done, fd)
		w.scanFile(h, fd, hintsFor(fd, fds, hints), mayGuess && len(seen) == 0, seen)
	}
	if w.holders[pid] != h || w.isExiting(pid) {
		return // it went while we looked
	}
	for _, name := range sortedNames(h.groups) {
		if !seen[name] {
			w.lose(h, name)
		}
	}
	h.next = time.Now().Add(w.config.Poll / 2)
	if time.Since(h.since) > youngFor {
		h.next = time.Now().Add(5 * w.config.Poll)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hintsFor leaves out what was said of other descriptors, unless those are no
// more: then any may be their dup.
func hintsFor(fd int, fds []int, hints []hint) []hint {
	return slices.DeleteFunc(slices.Clone(hints), func(t hint) bool { return t.fd != fd && slices.Contains(fds, t.fd) })
}

// holderOf returns a process that may be watched and has the control device
// open, and its descriptors of it.
func (w *Watcher) holderOf(pid int) (*holder, []int) {
	p, err := w.proc.Process(pid)
	h := w.holders[pid]
	if h != nil && (err != nil && h.pidfd.Exited() || err == nil && p.Start != h.process.Start) {
		w.exited(h)
		h = nil
	}
	if err != nil || w.config.Only != proc.Everyone && int64(p.UID) != int64(w.config.Only) {
		return nil, nil
	}
	fds, err := w.proc.controls(pid, w.config.Control)
	w.setRefused(p, errors.Is(err, fs.ErrPermission))
	switch {
	case err != nil:
		return nil, nil
	case h != nil:
		h.process = p // its name may be new
		if len(fds) == 0 && w.isExiting(pid) {
			return nil, nil
		}
		if len(fds) == 0 {
			for _, name := range sortedNames(h.groups) {
				w.lose(h, name)
			}
			w.drop(h)
			return nil, nil
		}
		return h, fds
	case len(fds) == 0:
		return nil, nil
	}
	pidfd, err := w.proc.Open(pid, p.Start)
	if err != nil {
		return nil, nil // it has gone
	}
	h = &holder{process: p, pidfd: pidfd, files: map[int]*control{}, groups: map[groupName]*found{}, since: time.Now()}
	w.holders[pid] = h
	w.waiters.Go(func() {
		if h.pidfd.WaitExit() {
			select {
			case w.exits <- h:
			case <-w.done:
			}
		}
	})
	return h, fds
}

// scanFile asks RM through a copy of one descriptor.
func (w *Watcher) scanFile(h *holder, fd int, hints []hint, mayGuess bool, seen map[groupName]bool) {
	copied, err := unix.PidfdGetfd(h.pidfd.Fd(), fd, 0) // close-on-exec by itself
	c := h.files[fd]
	if err != nil {
		w.setRefused(h.process, errors.Is(err, fs.ErrPermission))
		if !errors.Is(err, unix.EBADF) { // else it was closed while we looked
			keep(h, c.client, seen)
		}
		return
	}
	if !isDevice(copied, w.config.Control) {
		unix.Close(copied)
		return
	}
	file := nvrm.NewFile(copied)
	defer file.Close()
	for _, t := range hints {
		if t.fd == fd && len(c.known) < maxHints && !slices.Contains(c.known, t.object) {
			c.known = append(c.known, t.object)
		}
	}
	client, groups, err := w.ask(h, fd, file, hints, mayGuess)
	w.setClient(c, client)
	var s nvrm.Status
	if err != nil && !(errors.As(err, &s) && s.Gone()) {
		w.log.Debug("a descriptor gave no answer", "pid", h.process.PID, "fd", fd, "error", err)
		keep(h, client, seen)
		return
	}
	for _, g := range groups {
		seen[g.groupName] = true
		w.report(h, fd, copied, &g)
	}
}

// isExiting reports whether a process seems to hold nothing because it is about
// to end. Its pidfd will tell.
func (w *Watcher) isExiting(pid int) bool {
	s, err := w.proc.Stat(pid)
	return err != nil || s.Exiting
}

// keep has the groups of a client count as seen: they are not known to be gone.
func keep(h *holder, client nvrm.Handle, seen map[groupName]bool) {
	for name := range h.groups {
		if name.client == client {
			seen[name] = true
		}
	}
}

func (w *Watcher) setRefused(p proc.Process, refused bool) {
	if refused {
		w.refused[p.PID] = p.Start
	} else {
		delete(w.refused, p.PID)
	}
	w.mu.Lock()
	w.denied = len(w.refused)
	w.mu.Unlock()
}

// ask finds the client of a descriptor and its groups.
func (w *Watcher) ask(h *holder, fd int, f nvrm.Ioctler, hints []hint, mayGuess bool) (client nvrm.Handle, groups []found, err error) {
	c := h.files[fd]
	for _, client := range w.candidates(h, fd, hints) {
		groups, err = tree(f, client, c.known)
		if !errors.Is(err, nvrm.ErrInvalidClient) {
			return client, groups, err
		}
		w.guesses.Add(1)
	}
	w.setClient(c, 0)
	if !mayGuess || c.tries >= maxTries || time.Now().Before(c.retry) {
		return 0, nil, nil
	}
	c.tries++
	c.retry = time.Now().Add(retryAfter)
	own, err := w.clientsOf(f)
	for _, client = range own {
		groups, err = tree(f, client, c.known)
		if err != nil || len(groups) > 0 {
			break
		}
	}
	return client, groups, err
}

// candidates returns clients that a descriptor may well have: what a call through
// it named, what it had, and what another process has through the same open file.
func (w *Watcher) candidates(h *holder, fd int, hints []hint) []nvrm.Handle {
	var out []nvrm.Handle
	add := func(client nvrm.Handle) {
		if client != 0 && len(out) < maxCandidates && !slices.Contains(out, client) {
			out = append(out, client)
		}
	}
	for _, t := range slices.Backward(hints) { // the latest first
		add(t.client)
	}
	add(h.files[fd].client)
	if len(out) > 0 {
		return out
	}
	for _, o := range w.sortedHolders() {
		for ofd, c := range o.files {
			if c.client == 0 || o == h {
				continue
			}
			if same, _ := sameFile(h.process.PID, fd, o.process.PID, ofd); same {
				add(c.client)
			}
		}
	}
	return out
}

func (w *Watcher) setClient(c *control, client nvrm.Handle) {
	if c.client == client {
		return
	}
	if w.clients[c.client]--; w.clients[c.client] <= 0 {
		delete(w.clients, c.client)
	}
	if c.client = client; client != 0 {
		w.clients[client]++
		c.tries = 0
	} else {
		c.known = nil
	}
}

// report emits a group unless that was done: of this process, or of an older one
// that has the same open file.
func (w *Watcher) report(h *holder, fd, copied int, g *found) {
	old := h.groups[g.groupName]
	if old != nil && old.equal(g) || h.pidfd.Exited() {
		return
	}
	if old == nil && !w.nested {
		w.nested = true
		w.ownersFirst(h, fd, g)
		w.nested = false
	}
	if w.holders[h.process.PID] != h {
		return
	}
	if o := w.owners[g.groupName]; o != nil && o != h {
		h.shares = true
		return
	}
	if old != nil && (old.id != g.id || old.gpu != g.gpu) {
		w.lose(h, g.groupName) // another group under the same handle
	}
	server := w.proc.isMPSServer(h.process.PID)
	if !w.sortOutMPS(h, g, server) {
		h.shares = true
		return
	}
	channels := slices.Clone(g.channels)
	if server {
		channels = nil // the work is on its clients' channels, which are not its own to stop
	}
	own, err := unix.FcntlInt(uintptr(copied), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.log.Warn("a group cannot be reported", "pid", h.process.PID, "error", os.NewSyscallError("dup", err))
		return
	}
	h.groups[g.groupName] = g
	w.owners[g.groupName] = h
	w.log.Debug("a group", "pid", h.process.PID, "gpu", g.gpu, "id", g.id, "client", g.client, "handle", g.group, "channels", len(g.channels), "mps", server)
	w.emit(Event{Found: &Group{
		Process: h.process, GPU: g.gpu, Client: g.client, Handle: g.group, Subdevice: g.subdevice,
		Channels: channels, File: nvrm.NewFile(own), ID: g.id, MPSServer: server,
	}})
}

// sortOutMPS reports whether a group is a process's own to report. Under MPS all
// clients work in the server's group, each under a handle of its own: it is one
// queue, the server's.
func (w *Watcher) sortOutMPS(h *holder, g *found, server bool) bool {
	for _, o := range w.sortedHolders() {
		if o == h {
			continue
		}
		for _, name := range sortedNames(o.groups) {
			if same := o.groups[name]; same.id != g.id || same.gpu != g.gpu {
				continue
			}
			switch {
			case server:
				o.shares = true
				w.lose(o, name)
			case w.proc.isMPSServer(o.process.PID):
				return false
			}
		}
	}
	return true
}

// ownersFirst has those looked at first that may own the group instead: the
// process of which it was reported, in case it has let go, and ancestors that
// have the same open file.
func (w *Watcher) ownersFirst(h *holder, fd int, g *found) {
	if o := w.owners[g.groupName]; o != nil {
		for ofd, c := range o.files {
			if same, known := sameFile(h.process.PID, fd, o.process.PID, ofd); c.client == g.client && known && !same {
				w.scan(o.process.PID, nil, false)
				break
			}
		}
		return
	}
	pid := h.process.Parent
	for range maxAncestors {
		s, err := w.proc.Stat(pid)
		if err != nil || pid <= 1 || w.config.ours(pid) {
			return
		}
		fds, _ := w.proc.controls(pid, w.config.Control)
		for _, a := range fds {
			if same, _ := sameFile(h.process.PID, fd, pid, a); same {
				w.scan(pid, []hint{{a, g.client, g.group}}, false)
				return
			}
		}
		pid = s.Parent
	}
}

// lose says that one group is gone.
func (w *Watcher) lose(h *holder, name groupName) {
	delete(h.groups, name)
	delete(w.owners, name)
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start, Client: name.client, Group: name.group}})
}

// drop forgets a holder. Of its groups nobody is told.
func (w *Watcher) drop(h *holder) {
	h.pidfd.Close()
	delete(w.holders, h.process.PID)
	for _, c := range h.files {
		w.setClient(c, 0)
	}
	for name := range h.groups {
		delete(w.owners, name)
	}
}

// exited says that a process is gone, and looks at those that have what it had.
func (w *Watcher) exited(h *holder) {
	if w.holders[h.process.PID] != h {
		return // known
	}
	w.drop(h)
	if len(h.groups) == 0 {
		return
	}
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start}})
	for _, o := range w.sortedHolders() {
		if o.shares && w.holders[o.process.PID] == o {
			o.shares = false
			w.scan(o.process.PID, nil, false)
		}
	}
}

func sortedNames(groups map[groupName]*found) []groupName {
	return slices.SortedFunc(maps.Keys(groups), func(a, b groupName) int {
		if a.client != b.client {
			return int(int64(a.client) - int64(b.client))
		}
		return int(int64(a.group) - int64(b.group))
	})
}
