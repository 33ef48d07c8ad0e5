package discover

import (
	"cmp"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// opener is a process that has the control device open.
type opener struct {
	process     proc.Process
	pidfd       *proc.Pidfd
	files       map[int]*controlFD // by descriptor
	asks        uint64             // descriptors about which RM was asked so far
	groups      map[Key]*Group     // reported, and not gone
	sharesGroup bool               // it holds a group that was reported for another process
	shared      map[Key]bool       // such groups, of an open file that both processes have
	memberOf    []membership       // reported by Joined
	since       time.Time          // when it was first scanned
	scanned     time.Time          // when it was last scanned
	next        time.Time          // when a pass over all processes includes it again
	waits       bool               // its exit is waited for
	account     uint32             // the account that has its places
	places      int                // that it takes: see keep.go
}

// controlFD is a process's descriptor of the control device.
type controlFD struct {
	asked   uint64        // opener.asks when RM was last asked about it; zero: never
	foreign bool          // it was replaced by another file
	client  nvrm.Handle   // zero: unknown
	known   []nvrm.Handle // objects that traced calls named
	tries   int           // rounds of guessing
	retry   time.Time     // no guess before this time
}

const (
	maxTries      = 2 // rounds of guessing for a descriptor, maxGuesses each
	retryAfter    = 10 * time.Second
	maxCandidates = 4
	maxAncestors  = 16
	maxCompared   = 4096 // descriptors of other processes that are compared with an unknown one
)

// dependsOn reports whether freeing an object of a client changes a reported group.
func (h *opener) dependsOn(client, object nvrm.Handle) bool {
	for _, g := range h.groups {
		if g.Client == client && g.dependsOn(object) {
			return true
		}
	}
	return slices.ContainsFunc(h.memberOf, func(m membership) bool { return m.by.Client == client && m.by.dependsOn(object) })
}

// scan compares the groups of a process with those reported, and reports the differences.
// calls are traced calls of the process. mayGuess permits to guess client handles.
func (w *Watcher) scan(pid int, calls []call, mayGuess bool) {
	w.dropUnkept(pid)
	h, fds := w.openerOf(pid, calls)
	if h == nil {
		return
	}
	defer w.keep(h)
	h.scanned = time.Now()
	w.setFiles(h, fds)
	turn, rest := h.nextFiles(calls)
	var done []int
	seen := map[Key]bool{}
	for _, fd := range rest {
		markSeen(h, h.files[fd].client, seen)
	}
	for i, fd := range turn {
		if w.stopped() || w.openers[pid] != h {
			return
		}
		took := time.Since(h.scanned)
		if (i >= minAsks && took > scanTime || i > 0 && mayGuess && took > guessTime) && !w.config.Once {
			for _, later := range turn[i:] {
				markSeen(h, h.files[later].client, seen)
			}
			break
		}
		h.asks++
		h.files[fd].asked = h.asks
		if slices.ContainsFunc(done, func(d int) bool { same, _ := sameFile(pid, d, pid, fd); return same }) {
			continue // a dup
		}
		done = append(done, fd)
		w.scanFile(h, fd, callsOn(fd, fds, calls), mayGuess && len(seen) == 0, seen)
	}
	if w.openers[pid] != h || w.isExiting(pid) {
		return // it exited meanwhile
	}
	for _, key := range sortedKeys(h.groups) {
		if !seen[key] {
			w.reportGone(h, key)
		}
	}
	w.reportLeft(h, func(m membership) bool { return !seen[m.by.Key] })
	maps.DeleteFunc(h.shared, func(key Key, _ bool) bool { return !seen[key] })
	h.next = time.Now().Add(w.config.Poll / 2)
	if time.Since(h.since) > youngTime {
		h.next = time.Now().Add(5 * w.config.Poll)
	}
}

// callsOn returns the calls on a descriptor, and those on descriptors that were closed: fd
// may be a duplicate of one.
func callsOn(fd int, fds []int, calls []call) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return c.fd != fd && slices.Contains(fds, c.fd) })
}

// openerOf returns a process that has the control device open and may be
// inspected, and its descriptors of the device.
func (w *Watcher) openerOf(pid int, calls []call) (*opener, []int) {
	p, err := w.proc.Process(pid)
	h := w.openers[pid]
	if h != nil && (err != nil && h.pidfd.Exited() || err == nil && p.Start != h.process.Start) {
		w.exited(h)
		h = nil
	}
	if err != nil || w.config.Only != proc.Everyone && int64(p.UID) != int64(w.config.Only) {
		w.endSweep(pid)
		return nil, nil
	}
	fds, err := w.controls(p, h, calls)
	w.setRefused(p, errors.Is(err, fs.ErrPermission))
	switch {
	case err != nil || len(fds) == 0 && (h == nil || w.isExiting(pid)):
		return nil, nil
	case len(fds) == 0: // it has closed the device
		for _, key := range sortedKeys(h.groups) {
			w.reportGone(h, key)
		}
		w.reportLeft(h, func(membership) bool { return true })
		w.forget(h)
		return nil, nil
	case h != nil:
		h.process = p // its command may have changed
		return h, fds
	}
	return w.newOpener(p), fds
}

// newOpener adds a process; nil if it has exited.
func (w *Watcher) newOpener(p proc.Process) *opener {
	pidfd, err := w.proc.OpenPidfd(p.PID, p.Start)
	if err != nil {
		return nil
	}
	h := &opener{process: p, pidfd: pidfd, files: map[int]*controlFD{}, groups: map[Key]*Group{}, shared: map[Key]bool{}, since: time.Now()}
	w.openers[p.PID] = h
	return h
}

// scanFile asks RM for the groups of one descriptor, through a copy.
func (w *Watcher) scanFile(h *opener, fd int, calls []call, mayGuess bool, seen map[Key]bool) {
	copied, err := unix.PidfdGetfd(h.pidfd.Fd(), fd, 0) // sets close-on-exec
	c := h.files[fd]
	if err != nil {
		w.setRefused(h.process, errors.Is(err, fs.ErrPermission))
		if !errors.Is(err, unix.EBADF) { // EBADF: it was closed meanwhile
			markSeen(h, c.client, seen)
		}
		return
	}
	if c.foreign = !isDevice(copied, w.config.Control); c.foreign {
		unix.Close(copied)
		return
	}
	file := nvrm.NewFile(copied)
	defer file.Close()
	for _, t := range calls {
		if t.fd == fd && !slices.Contains(c.known, t.object) && h.hasRoomFor(c) {
			c.known = append(c.known, t.object)
		}
	}
	client, groups, err := w.findGroups(h, fd, file, calls, mayGuess)
	w.setClient(c, client)
	if err != nil && !nvrm.IsGone(err) {
		w.log.Debug("cannot list the objects of a descriptor", "pid", h.process.PID, "fd", fd, "error", err)
		markSeen(h, client, seen)
		return
	}
	searched := false // the ancestors, which is the same for all groups of a file
	for _, g := range groups {
		seen[g.Key] = true
		if old := h.groups[g.Key]; old != nil && w.hasOtherSlice(h, file, g.Key) {
			old.remade = true
		}
		w.reportFound(h, fd, copied, &g, &searched)
	}
}

// hasRoomFor reports whether one more object that calls named is remembered for a descriptor.
func (h *opener) hasRoomFor(c *controlFD) bool {
	if len(c.known) >= maxCalls {
		return false
	}
	all := 0
	for _, o := range h.files {
		all += len(o.known)
	}
	return all < maxKnown
}

// noteFree marks the groups that a traced free has freed, so that the next scan reports them as
// gone even if RM has the same handles and numbers again. A process can forge such a free: its
// status is read from the memory of the process. So the receiver of the events must not let a
// process gain by them.
func (h *opener) noteFree(client, object nvrm.Handle) {
	for _, g := range h.groups {
		if g.Client == client && g.isFreedBy(object) {
			g.remade = true
		}
	}
}

// hasOtherSlice reports whether a group has another slice than was set. Where calls are not
// traced, this shows that it was made again. RM answers without the firmware.
func (w *Watcher) hasOtherSlice(h *opener, f nvrm.Ioctler, key Key) bool {
	if w.config.Slice == nil {
		return false
	}
	want := w.config.Slice(h.process.ID(), key)
	if want == 0 {
		return false
	}
	got, err := nvrm.Group{File: f, Client: key.Client, Handle: key.Handle}.Timeslice()
	// Asked again: the slice may have been changed meanwhile.
	return err == nil && got != want && w.config.Slice(h.process.ID(), key) == want
}

// isExiting reports whether a process is exiting. Its descriptors are closed then, and its
// pidfd will report the exit.
func (w *Watcher) isExiting(pid int) bool {
	s, err := w.proc.Stat(pid)
	return err != nil || s.Exiting
}

// markSeen keeps the groups of a client when RM could not be asked about them.
func markSeen(h *opener, client nvrm.Handle, seen map[Key]bool) {
	for _, of := range []iter.Seq[Key]{maps.Keys(h.groups), maps.Keys(h.shared)} {
		for key := range of {
			if key.Client == client {
				seen[key] = true
			}
		}
	}
	for _, m := range h.memberOf {
		if m.by.Client == client {
			seen[m.by.Key] = true
		}
	}
}

func (w *Watcher) setRefused(p proc.Process, refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if refused {
		w.refused[p.PID] = p.Start
	} else {
		delete(w.refused, p.PID)
	}
}

// findGroups finds the client of a descriptor and its groups.
func (w *Watcher) findGroups(h *opener, fd int, f nvrm.Ioctler, calls []call, mayGuess bool) (client nvrm.Handle, groups []Group, err error) {
	c := h.files[fd]
	for _, client := range w.likelyClients(h, fd, calls) {
		if !w.mayName(f, client, c.client) {
			continue
		}
		groups, err = groupsOf(f, client, c.known)
		if !errors.Is(err, nvrm.ErrInvalidClient) {
			return client, groups, err
		}
		w.guesses.Add(1)
		w.guessesMade++
	}
	w.setClient(c, 0)
	if !mayGuess || c.tries >= maxTries || time.Now().Before(c.retry) {
		return 0, nil, nil
	}
	c.tries++
	c.retry = time.Now().Add(retryAfter)
	own, err := w.clientsOf(f)
	if errors.Is(err, errUnfinished) {
		c.tries-- // it goes on at the next attempt
	}
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
func (w *Watcher) likelyClients(h *opener, fd int, calls []call) []nvrm.Handle {
	var out []nvrm.Handle
	add := func(client nvrm.Handle) {
		if client != 0 && len(out) < maxCandidates && !slices.Contains(out, client) {
			out = append(out, client)
		}
	}
	for _, c := range slices.Backward(calls) { // the latest first
		add(c.client)
	}
	add(h.files[fd].client)
	if len(out) > 0 {
		return out
	}
	compared := 0
	for _, o := range w.sortedOpeners() {
		for ofd, c := range o.files {
			if c.client == 0 || o == h || compared == maxCompared {
				continue
			}
			compared++
			if same, _ := sameFile(h.process.PID, fd, o.process.PID, ofd); same {
				add(c.client)
			}
		}
	}
	return out
}

func (w *Watcher) setClient(c *controlFD, client nvrm.Handle) {
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
// with the same open file. The ancestors are searched for that process unless they were already.
func (w *Watcher) reportFound(h *opener, fd, copied int, g *Group, searched *bool) {
	old := h.groups[g.Key]
	if old != nil && !old.remade && old.same(g) || h.pidfd.Exited() {
		return
	}
	if old == nil && !w.inOwnerScan {
		w.inOwnerScan = true
		if o := w.owners[g.Key]; o != nil {
			w.scanOwner(o, h, fd, g)
		} else if !*searched {
			*searched = true
			w.scanAncestors(h, fd, g)
		}
		w.inOwnerScan = false
	}
	if w.openers[h.process.PID] != h {
		return
	}
	if o := w.owners[g.Key]; o != nil && o != h {
		h.sharesGroup, h.shared[g.Key] = true, true
		return
	}
	delete(h.shared, g.Key)
	if old != nil && (old.remade || old.ID != g.ID || old.GPU != g.GPU) {
		w.reportGone(h, g.Key) // the handle was reused
	}
	server := w.proc.isMPSServer(h.process.PID)
	if !w.ownsGroup(h, g, server) {
		h.sharesGroup = true
		return
	}
	own, err := unix.FcntlInt(uintptr(copied), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.log.Warn("cannot report a channel group", "pid", h.process.PID, "error", os.NewSyscallError("dup", err))
		return
	}
	g.fd = fd
	h.groups[g.Key] = g
	w.owners[g.Key] = h
	w.log.Debug("channel group found", "pid", h.process.PID, "gpu", g.GPU, "id", g.ID, "client", g.Client, "handle", g.Handle, "channels", len(g.Channels), "mps", server)
	report := *g
	report.Process, report.File, report.MPSServer = h.process, nvrm.NewFile(own), server
	if report.Channels = slices.Clone(g.Channels); server {
		report.Channels = nil // the work runs on channels of its clients
		report.Pool = w.proc.poolOf(h.process)
	}
	w.emit(Event{Found: &report})
}

// scanOwner scans the process for which a group of h was reported, in case it has given it up.
func (w *Watcher) scanOwner(o, h *opener, fd int, g *Group) {
	for ofd, c := range o.files {
		if c.client != g.Client {
			continue
		}
		if same, known := sameFile(h.process.PID, fd, o.process.PID, ofd); known && !same {
			w.scan(o.process.PID, nil, false)
			break
		}
	}
}

// scanAncestors scans an ancestor with the same open file: it may own the group instead of h.
func (w *Watcher) scanAncestors(h *opener, fd int, g *Group) {
	pid := h.process.Parent
	for range maxAncestors {
		s, err := w.proc.Stat(pid)
		if err != nil || pid <= 1 || w.config.ignores(pid) {
			return
		}
		for _, a := range w.someControls(pid) {
			if same, _ := sameFile(h.process.PID, fd, pid, a); same {
				w.scan(pid, []call{{fd: a, client: g.Client, object: g.Handle}}, false)
				return
			}
		}
		pid = s.Parent
	}
}

// reportGone emits that one group is gone.
func (w *Watcher) reportGone(h *opener, key Key) {
	delete(h.groups, key)
	delete(w.owners, key)
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start, Key: key}})
	w.dropMembers(h, key)
}

// forget removes an opener and emits no events.
func (w *Watcher) forget(h *opener) {
	w.leavePlaces(h)
	h.pidfd.Close()
	delete(w.openers, h.process.PID)
	for _, c := range h.files {
		w.setClient(c, 0)
	}
	for key := range h.groups {
		delete(w.owners, key)
	}
}

// exited emits that a process has exited, and scans processes that share its groups. RM keeps
// a shared group, so it is reported as one that may have to be restored.
func (w *Watcher) exited(h *opener) {
	if w.openers[h.process.PID] != h {
		return // handled already
	}
	heirs := w.findHeirs(h)
	defer w.keepHeirs(heirs)
	w.forget(h)
	w.reportLeft(h, func(membership) bool { return true })
	if len(h.groups) == 0 {
		return
	}
	for _, key := range sortedKeys(h.groups) {
		if w.isShared(key) {
			w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start, Key: key}})
		}
	}
	w.emit(Event{Gone: &Gone{PID: h.process.PID, Start: h.process.Start}})
	w.scanSharers(h)
}

func sortedKeys(groups map[Key]*Group) []Key {
	return slices.SortedFunc(maps.Keys(groups), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Handle, b.Handle))
	})
}
