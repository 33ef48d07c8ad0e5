package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// adoption is what the guardian must know of a group to undo what we do to it.
type adoption struct {
	Client    nvrm.Handle   `json:"client"`
	Group     nvrm.Handle   `json:"group"`
	Subdevice nvrm.Handle   `json:"subdevice"`
	Channels  []nvrm.Handle `json:"channels"`
	Found     time.Duration `json:"found_ns"`
}

// target is the group that an adoption tells of.
func (a adoption) target(f nvidia.File) nvidia.Target {
	return nvidia.Target{File: f, Client: a.Client, Group: a.Group, Subdevice: a.Subdevice, Channels: a.Channels}
}

// ward keeps a guardian at our side. One that dies is replaced, and told all
// that the last one knew; while there is none nothing is changed.
type ward struct {
	argv []string
	log  *slog.Logger

	mu      sync.Mutex
	guard   *guardian.Guardian // nil while there is none
	journal journal.Journal
	wards   map[sched.QueueID]entrusted
	leaving bool
}

// entrusted is a queue, with a copy of its descriptor: a guardian may have to be told of
// it while the queue itself is being closed.
type entrusted struct {
	adoption adoption
	fd       int
}

var errNoGuardian = errors.New("there is no guardian, so nothing is changed")

func newWard(argv []string, log *slog.Logger) *ward {
	w := &ward{argv: argv, log: log, wards: make(map[sched.QueueID]entrusted)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hire()
	return w
}

// hire starts a guardian and tells it what there is to know. w.mu is held.
func (w *ward) hire() {
	g, err := guardian.Start(w.argv...)
	for id, e := range w.wards {
		if err == nil {
			err = g.Adopt(id, e.adoption, e.fd)
		}
	}
	for _, a := range w.journal.Changes() {
		if err == nil {
			err = g.Begin(a)
		}
	}
	if err != nil {
		w.log.Error("no guardian: nothing will be changed", "error", err)
		if g != nil {
			_ = g.Close()
		}
		return
	}
	w.guard = g
	go w.watch(g)
}

// watch replaces a guardian that dies. One that cannot be replaced at once is
// tried for again, but not all the time.
func (w *ward) watch(g *guardian.Guardian) {
	<-g.Gone()
	for {
		w.mu.Lock()
		if w.leaving {
			w.mu.Unlock()
			return
		}
		if w.guard == g {
			w.log.Error("the guardian has died: another is started")
			w.guard = nil
		}
		w.hire()
		there := w.guard != nil
		w.mu.Unlock()
		if there {
			return
		}
		time.Sleep(time.Second)
	}
}

// is reports whether a process is the guardian.
func (w *ward) is(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.guard != nil && w.guard.PID() == pid
}

// adopt entrusts a queue.
func (w *ward) adopt(id sched.QueueID, a adoption, fd int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("copy a descriptor for the guardian: %w", err)
	}
	w.wards[id] = entrusted{a, own}
	if w.guard == nil {
		return errNoGuardian
	}
	return w.guard.Adopt(id, a, own)
}

// forget is for a queue that is no more, or is as it was found.
func (w *ward) forget(id sched.QueueID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.wards[id]; ok {
		_ = unix.Close(e.fd)
	}
	delete(w.wards, id)
	w.journal.Forget(id)
	if w.guard != nil {
		_ = w.guard.Forget(id)
	}
}

// Begin implements keeper.
func (w *ward) Begin(a sched.Action) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.guard == nil {
		return errNoGuardian
	}
	if err := w.guard.Begin(a); err != nil {
		return err
	}
	w.journal.Begin(a)
	return nil
}

// End implements keeper.
func (w *ward) End(a sched.Action, came sched.Outcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal.End(a, came)
	if w.guard == nil {
		return nil
	}
	return w.guard.End(a, came)
}

// close takes leave of the guardian, if everything is undone; otherwise it is
// left to undo the rest.
func (w *ward) close(undone bool) error {
	w.mu.Lock()
	w.leaving = true
	g := w.guard
	w.mu.Unlock()
	if g == nil || !undone {
		return nil
	}
	return g.Close()
}

// check says whether there is a guardian.
func (w *ward) check() api.Check {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.guard == nil {
		return api.Check{
			Name: "guardian", Detail: "there is none, so nothing is changed",
			Fix: "see the daemon's log; it is tried again every second",
		}
	}
	return api.Check{Name: "guardian", OK: true, Detail: "undoes everything if the daemon dies"}
}
