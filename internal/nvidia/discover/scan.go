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

// holder is a process that has the control device open.
type holder struct {
	process     proc.Process
	pidfd       *proc.Handle
	files       map[int]*control     // by descriptor
	groups      map[groupName]*found // reported, and not gone
	sharesGroup bool                 // it holds a group that was reported for another process
	since       time.Time
	next        time.Time // when a scan of all processes includes it again
}

// control is what is known of a descriptor of the control device.
type control struct {
	client nvrm.Handle   // zero: unknown
	known  []nvrm.Handle // objects that traced calls named
	tries  int           // rounds of guessing
	retry  time.Time     // no guess before this time
}

const (
	maxTries      = 2 // rounds of guessing for a descriptor, maxGuesses each
	retryAfter    = 10 * time.Second
	maxCandidates = 4
	maxAncestors  = 16
)

func (h *holder) dependsOn(client, object nvrm.Handle) bool {
	for name, g := range h.groups {
		if name.client == client && g.dependsOn(object) {
			return true
		}
	}
	return false
}

// scan compares the groups of a process with those reported, and reports the differences.
// hints are traced calls. mayGuess permits to guess client handles.
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
	// Descriptors with a known client come first. Once one has led to a compute group no
	// handles are guessed for the others: CUDA has one client per process.
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
		return // it exited meanwhile
	}
	for _, name := range sortedNames(h.groups) {
		if !seen[name] {
			w.reportGone(h, name)
		}
	}
	h.next = time.Now().Add(w.config.Poll / 2)
	if time.Since(h.since) > youngTime {
		h.next = time.Now().Add(5 * w.config.Poll)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hintsFor returns the hints for a descriptor, and those for descriptors that were closed:
// fd may be a duplicate of one.
func hintsFor(fd int, fds []int, hints []hint) []hint {
	return slices.DeleteFunc(slices.Clone(hints), func(t hint) bool { return t.fd != fd && slices.Contains(fds, t.fd) })
}

// holderOf returns the record of a process that has the control device open and may be
// inspected, and its descriptors of the device.
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
		h.process = p // its command may have changed
		if len(fds) == 0 && w.isExiting(pid) {
			return nil, nil
		}
		if len(fds) == 0 {
			for _, name := range sortedNames(h.groups) {
				w.reportGone(h, name)
			}
			w.forget(h)
			return nil, nil
		}
		return h, fds
	case len(fds) == 0:
		return nil, nil
	}
	pidfd, err := w.proc.Open(pid, p.Start)
	if err != nil {
		return nil, nil // it has exited
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

// scanFile asks RM for the groups of one descriptor, through a copy.
func (w *Watcher) scanFile(h *holder, fd int, hints []hint, mayGuess bool, seen map[groupName]bool) {
	copied, err := unix.PidfdGetfd(h.pidfd.Fd(), fd, 0) // sets close-on-exec
	c := h.files[fd]
	if err != nil {
		w.setRefused(h.process, errors.Is(err, fs.ErrPermission))
		if !errors.Is(err, unix.EBADF) { // EBADF: it was closed meanwhile
			markSeen(h, c.client, seen)
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
	client, groups, err := w.findGroups(h, fd, file, hints, mayGuess)
	w.setClient(c, client)
	if err != nil && !nvrm.IsGone(err) {
		w.log.Debug("cannot list the objects of a descriptor", "pid", h.process.PID, "fd", fd, "error", err)
		markSeen(h, client, seen)
		return
	}
	for _, g := range groups {
		seen[g.groupName] = true
		w.reportFound(h, fd, copied, &g)
	}
}

// isExiting reports whether a process is exiting. Its descriptors are closed then, and its
// pidfd will report the exit.
func (w *Watcher) isExiting(pid int) bool {
	s, err := w.proc.Stat(pid)
	return err != nil || s.Exiting
}

// markSeen keeps the groups of a client when RM could not be asked about them.
func markSeen(h *holder, client nvrm.Handle, seen map[groupName]bool) {
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

// findGroups finds the client of a descriptor and its groups.
func (w *Watcher) findGroups(h *holder, fd int, f nvrm.Ioctler, hints []hint, mayGuess bool) (client nvrm.Handle, groups []found, err error) {
	c := h.files[fd]
	for _, client := range w.likelyClients(h, fd, hints) {
		groups, err = groupsOf(f, client, c.known)
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
		groups, err = groupsOf(f, client, c.known)
		if err != nil || len(groups) > 0 {
			break
		}
	}
	return client, groups, err
}

// likelyClients returns likely clients of a descriptor: those that traced calls through it
// named, the one it had, and the client of another process's descriptor of the same file.
func (w *Watcher) likelyClients(h *holder, fd int, hints []hint) []nvrm.Handle {
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
	if w.knownClients[c.client]--; w.knownClients[c.client] <= 0 {
		delete(w.knownClients, c.client)
	}
	if c.client = client; client != 0 {
		w.knownClients[client]++
		c.tries = 0
	} else {
		c.known = nil
	}
}

// reportFound emits a group unless it was reported already, for this process or for another
// with the same open file.
func (w *Watcher) reportFound(h *holder, fd, copied int, g *found) {
	old := h.groups[g.groupName]
	if old != nil && old.equal(g) || h.pidfd.Exited() {
		return
	}
	if old == nil && !w.inOwnerScan {
		w.inOwnerScan = true
		w.scanLikelyOwners(h, fd, g)
		w.inOwnerScan = false
	}
	if w.holders[h.process.PID] != h {
		return
	}
	if o := w.owners[g.groupName]; o != nil && o != h {
		h.sharesGroup = true
		return
	}
	if old != nil && (old.id != g.id || old.gpu != g.gpu) {
		w.reportGone(h, g.groupName) // the handle was reused
	}
	server := w.proc.isMPSServer(h.process.PID)
	if !w.ownsGroup(h, g, server) {
		h.sharesGroup = true
		return
	}
	channels := slices.Clone(g.channels)
	if server {
		channels = nil // the work runs on channels of its clients
	}
	own, err := unix.FcntlInt(uintptr(copied), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.log.Warn("cannot report a channel group", "pid", h.process.PID, "error", os.NewSyscallError("dup", err))
		return
	}
	h.groups[g.groupName] = g
	w.owners[g.groupName] = h
	w.log.Debug("channel group found", "pid", h.process.PID, "gpu", g.gpu, "id", g.id, "client", g.client, "handle", g.group, "channels", len(g.channels), "mps", server)
	w.emit(Event{Found: &Group{
		Process: h.process, GPU: g.gpu, Client: g.client, Handle: g.group, Subdevice: g.subdevice,
		Channels: channels, File: nvrm.NewFile(own), ID: g.id, MPSServer: server,
	}})
}

// ownsGroup reports whether a group is to be reported for a process. Under MPS all clients
// use the group of the server, each under a handle of its own: it is one queue and belongs
// to the server.
func (w *Watcher) ownsGroup(h *holder, g *found, server bool) bool {
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
				o.sharesGroup = true
				w.reportGone(o, name)
			case w.proc.isMPSServer(o.process.PID):
				return false
			}
		}
	}
	return true
}

// scanLikelyOwners scans processes that may own the group instead of h: the process for
// which it was reported, in case it has given it up, and ancestors with the same open file.
func (w *Watcher) scanLikelyOwners(h *holder, fd int, g *found) {
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
		if err != nil || pid <= 1 || w.config.ignores(pid) {
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

// reportGone emits that one group is gone.
func (w *Watcher) reportGone(h *holder, name groupName) {
	delete(h.groups, name)
	delete(w.owners, name)
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start, Client: name.client, Group: name.group}})
}

// forget removes a holder and emits no events.
func (w *Watcher) forget(h *holder) {
	h.pidfd.Close()
	delete(w.holders, h.process.PID)
	for _, c := range h.files {
		w.setClient(c, 0)
	}
	for name := range h.groups {
		delete(w.owners, name)
	}
}

// exited emits that a process has exited, and scans processes that share its groups.
func (w *Watcher) exited(h *holder) {
	if w.holders[h.process.PID] != h {
		return // handled already
	}
	w.forget(h)
	if len(h.groups) == 0 {
		return
	}
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start}})
	for _, o := range w.sortedHolders() {
		if o.sharesGroup && w.holders[o.process.PID] == o {
			o.sharesGroup = false
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
