package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// adoption is what the guardian needs to undo changes of a queue: the backend that knows
// how, and the state that the backend gave. The process is for the journal on disk: by it
// the queue can be found again when the guardian, too, was killed.
type adoption struct {
	Process proc.ID `json:"-"`
	Backend string  `json:"backend"`
	State   any     `json:"state"`
}

// supervisor keeps a guardian process running and reports every change to it. It replaces
// a guardian that dies or does not take a message, and reports everything again. While there is none,
// changes are undone and none is made. Every change is also in the journal on disk before it is
// made. It implements changeJournal.
type supervisor struct {
	argv  []string
	disk  *journal.Store // nil: none
	log   *slog.Logger
	pause time.Duration // guardianPause
	note  func(string)  // tells the record what became of the guardian
	// guardians has the pid of every guardian that has not exited, also of one that is told
	// everything, and of one that was killed and hangs in a driver call.
	guardians sync.Map

	// mu is never held while a guardian is started: queues come and go meanwhile.
	mu       sync.Mutex
	guardian *guardian.Guardian // nil while there is none that knows everything
	journal  journal.Journal
	adopted  map[sched.QueueID]adopted
	unsent   map[sched.QueueID]bool // what a guardian that is started has to be told; nil: none is
	closing  bool
}

// adopted is a queue that the guardian can restore, with a copy of its descriptor: the
// queue may have to be sent to a new guardian while it is being closed here.
type adopted struct {
	adoption
	fd       int
	unlisted *journal.Queue // what the journal on disk gets before the first change; nil: it has it
}

var (
	errNoGuardian = errors.New("no guardian is running, so nothing is changed")
	errNotAdopted = errors.New("the guardian does not have the queue, so it is not changed")
)

func newSupervisor(argv []string, disk *journal.Store, log *slog.Logger, note func(string)) *supervisor {
	s := &supervisor{argv: argv, disk: disk, log: log, note: note, pause: guardianPause, adopted: make(map[sched.QueueID]adopted)}
	s.startGuardian()
	go s.keepGuardian()
	return s
}

// guardianRuns is the note that a guardian was started.
const guardianRuns = "running"

// startGuardian starts a guardian and tells it everything.
func (s *supervisor) startGuardian() {
	s.mu.Lock()
	argv := s.argv
	s.mu.Unlock()
	g, err := guardian.Start(argv...)
	if err == nil {
		s.guardians.Store(g.PID(), true)
		go func() {
			<-g.Exited()
			s.guardians.Delete(g.PID())
		}()
		err = s.tellAll(g)
	}
	if err != nil {
		s.log.Error("guardian could not be started; nothing is changed until one runs", "error", err)
		s.note("could not be started; nothing is changed until one runs")
		if g != nil {
			g.Kill()
			_ = g.Close()
		}
		return
	}
	s.note(guardianRuns)
}

// tellAll tells a new guardian everything, and then makes it the one that is told of changes. A
// queue that is adopted, forgotten or restored meanwhile is told again.
func (s *supervisor) tellAll(g *guardian.Guardian) error {
	if s.disk != nil {
		if err := g.Share(s.disk); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.unsent = make(map[sched.QueueID]bool)
	for id := range s.adopted {
		s.unsent[id] = true
	}
	s.mu.Unlock()
	for {
		next, err := s.nextUnsent(g)
		if next == nil && err == nil {
			return nil
		}
		if err == nil {
			if err = next.send(g); s.dropUnsent(next, err) {
				continue
			}
		}
		if err != nil {
			s.mu.Lock()
			s.unsent = nil
			s.mu.Unlock()
			return err
		}
	}
}

// unsentQueue is what a new guardian is told of a queue.
type unsentQueue struct {
	id sched.QueueID
	adopted
	change journal.Change
}

// nextUnsent returns what to tell next, with a descriptor of its own, or nil if g knows everything
// and is the guardian now.
func (s *supervisor) nextUnsent(g *guardian.Guardian) (_ *unsentQueue, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.unsent {
		delete(s.unsent, id)
		a, ok := s.adopted[id]
		if !ok {
			return &unsentQueue{id: id, adopted: adopted{fd: -1}}, nil
		}
		a.fd, err = copyFD(a.fd) // forget may close that one
		return &unsentQueue{id, a, s.journal.Of(id)}, err
	}
	s.guardian, s.unsent = g, nil
	return nil, nil
}

func (u *unsentQueue) send(g *guardian.Guardian) error {
	if u.fd < 0 {
		return g.Forget(u.id)
	}
	defer closeFD(u.fd)
	if err := g.Adopt(u.id, u.adoption, u.fd); err != nil {
		return err
	}
	return g.Change(u.id, u.change)
}

// dropUnsent drops a queue that cannot be sent to any guardian, so that the others are sent. It is not
// changed, for without a guardian that has it no queue is.
func (s *supervisor) dropUnsent(u *unsentQueue, err error) bool {
	if err == nil || errors.Is(err, guardian.ErrUnreachable) || u.change != (journal.Change{}) {
		return false
	}
	s.log.Error("queue cannot be sent to the guardian, so it is not changed", "queue", u.id, "error", err)
	s.forget(u.id)
	return true
}

func copyFD(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("copy a descriptor for the guardian: %w", err)
	}
	return own, nil
}

// closeFD closes a copy of a queue's descriptor. It may be the last one, and then close(2) calls the
// driver, which may hang. So it does not wait.
func closeFD(fd int) { go func() { _ = unix.Close(fd) }() }

// tell sends a message about a queue to the guardian. A guardian that does not take it is killed,
// and so replaced. One that is being started is told of the queue again. s.mu is held.
func (s *supervisor) tell(id sched.QueueID, send func(*guardian.Guardian) error) error {
	if s.unsent != nil {
		s.unsent[id] = true
	}
	if s.guardian == nil {
		return nil
	}
	err := send(s.guardian)
	if errors.Is(err, guardian.ErrUnreachable) {
		s.guardian.Kill()
	}
	return err
}

// guardianPause is the time between two attempts to start a guardian, if the last one
// failed or did not live that long. Tests set it,
// before they make a supervisor.
var guardianPause = time.Second

// keepGuardian starts a guardian whenever there is none, until the supervisor is closed. It does
// not wait until one that was killed has exited: that may hang in a driver call.
func (s *supervisor) keepGuardian() {
	for {
		g, _ := s.state()
		started := time.Now()
		if g != nil {
			<-g.Gone()
			_ = g.Close() // releases the socket
			s.mu.Lock()
			s.guardian = nil
			s.mu.Unlock()
		}
		if time.Since(started) < s.pause {
			time.Sleep(s.pause)
		}
		if _, closing := s.state(); closing {
			return
		}
		if g != nil {
			s.log.Error("guardian died; starting another")
			s.note("died; starting another")
		}
		s.startGuardian()
		if _, closing := s.state(); closing {
			_ = s.close() // it was started too late for the first call
		}
	}
}

func (s *supervisor) state() (g *guardian.Guardian, closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.guardian, s.closing
}

// isGuardian reports whether a process is a guardian. Discovery asks in every scan, so it does
// not wait for messages to the guardian.
func (s *supervisor) isGuardian(pid int) bool {
	_, yes := s.guardians.Load(pid)
	return yes
}

// adopt sends a queue to the guardian, now or when there is one. After an error the queue
// is not changed.
func (s *supervisor) adopt(id sched.QueueID, a adoption, fd int) error {
	own, err := copyFD(fd)
	if err != nil {
		return err
	}
	state, err := json.Marshal(a.State)
	if err == nil {
		err = guardian.CheckAdopt(id, a) // also while none runs: the next one must get every queue
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = s.tell(id, func(g *guardian.Guardian) error { return g.Adopt(id, a, own) })
	}
	if err != nil && !errors.Is(err, guardian.ErrUnreachable) { // else the next guardian gets the queue
		closeFD(own)
		return err
	}
	s.adopted[id] = adopted{a, own, &journal.Queue{Process: a.Process, Backend: a.Backend, State: state}}
	return nil
}

// forget reports to the guardian that a queue is gone, or restored.
func (s *supervisor) forget(id sched.QueueID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.adopted[id]
	if !ok {
		return
	}
	closeFD(a.fd)
	delete(s.adopted, id)
	s.journal.Forget(id)
	_ = s.tell(id, func(g *guardian.Guardian) error { return g.Forget(id) })
	_ = s.disk.ForgetQueue(id)
}

// Begin implements changeJournal. An action that only undoes a change is never refused: without
// a guardian, or with a journal that cannot be written, the change would stay in force. A journal on
// disk that still lists a change which was undone does no harm.
func (s *supervisor) Begin(a sched.Action) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !journal.Adds(a) {
		s.journal.Begin(a) // what is changed stays as it is until End
		return nil
	}
	if s.guardian == nil || s.closing {
		return errNoGuardian
	}
	if err := s.list(a.Queue); err != nil {
		return err
	}
	before := s.journal.Of(a.Queue)
	s.journal.Begin(a)
	err := s.disk.PutChange(a.Queue, s.journal.Of(a.Queue))
	if err == nil {
		err = s.tellChange(a.Queue, before)
	}
	if err != nil {
		s.journal.End(a, sched.Unsupported) // nothing is changed
		_ = s.disk.PutChange(a.Queue, before)
	}
	return err
}

// list makes the journal on disk have a queue, so that a later process finds it again. s.mu is held.
func (s *supervisor) list(id sched.QueueID) error {
	q, ok := s.adopted[id]
	if !ok {
		return errNotAdopted
	}
	if q.unlisted == nil {
		return nil
	}
	if err := s.disk.PutQueue(id, *q.unlisted); err != nil {
		return err
	}
	q.unlisted = nil
	s.adopted[id] = q
	return nil
}

// End implements changeJournal.
func (s *supervisor) End(a sched.Action, outcome sched.Outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.journal.Of(a.Queue)
	s.journal.End(a, outcome)
	_ = s.disk.PutChange(a.Queue, s.journal.Of(a.Queue))
	return s.tellChange(a.Queue, before)
}

// tellChange sends the guardian what is changed of a queue, unless that is the same as before.
// s.mu is held.
func (s *supervisor) tellChange(id sched.QueueID, before journal.Change) error {
	now := s.journal.Of(id)
	if now == before {
		return nil
	}
	return s.tell(id, func(g *guardian.Guardian) error { return g.Change(id, now) })
}

// Undo implements changeJournal.
func (s *supervisor) Undo(id sched.QueueID) []sched.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal.Of(id).Undo(id)
}

// close ends the guardian if all changes are undone. Otherwise the guardian is left to
// undo the rest when this process exits. If there is none, an error says what is left.
func (s *supervisor) close() error {
	s.mu.Lock()
	s.closing = true // from now on Begin adds no change
	g, left := s.guardian, s.journal.Len()
	s.mu.Unlock()
	switch {
	case g == nil && left > 0:
		return fmt.Errorf("%s left changed, and no guardian runs: start the daemon again or run 'giveway restore'", format.Plural(left, "queue"))
	case g == nil || left > 0:
		return nil
	}
	return g.Close()
}

// check says whether a guardian is running.
func (s *supervisor) check() api.Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guardian == nil {
		return api.Check{
			Name: "guardian", Detail: "not running, so changes are undone and none is made",
			Fix: "see the daemon's log; the daemon tries again every second",
		}
	}
	return api.Check{Name: "guardian", OK: true, Detail: "undoes all changes if the daemon dies"}
}
