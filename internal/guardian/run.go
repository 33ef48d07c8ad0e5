package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// Adopter returns a queue for the state and the descriptor that Guardian.Adopt
// sent. The queue owns the descriptor.
type Adopter func(found json.RawMessage, fd int) (hal.Queue, error)

// Run runs the guardian: it reads messages from a descriptor until the daemon
// has exited, and undoes all changes if the daemon sent no goodbye.
func Run(fd int, adopt Adopter, log *slog.Logger) error {
	s := &server{adopt: adopt, lock: -1, queues: make(map[sched.QueueID]hal.Queue), log: log}
	_ = setOOMScore(guardianScore) // without privileges, and outside the unit, the default stays
	buf := make([]byte, maxMessage)
	for {
		n, received, err := receive(fd, buf)
		switch {
		case err != nil || n == 0:
			if s.goodbye {
				s.unlock()
				return nil
			}
			if err != nil {
				log.Error("read message from the daemon", "error", err)
			}
			return s.undo()
		default:
			s.handle(buf[:n], received)
		}
	}
}

// server is the guardian's side of the connection.
type server struct {
	adopt   Adopter
	journal journal.Journal
	path    string // of the journal on disk; empty: there is none
	lock    int    // the locked file of that journal; -1: none
	queues  map[sched.QueueID]hal.Queue
	goodbye bool
	log     *slog.Logger
}

// receive reads one packet. It returns the descriptor that came with it, or -1.
func receive(fd int, buf []byte) (n, received int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	var oobn int
	for {
		n, oobn, _, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil || oobn == 0 {
		return n, -1, err
	}
	received = -1
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, f := range fds {
			if received < 0 {
				received = f
			} else {
				_ = unix.Close(f)
			}
		}
	}
	return n, received, err
}

// handle applies one message and the descriptor that came with it.
func (s *server) handle(text []byte, fd int) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		s.log.Error("decode message from the daemon", "error", err)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return
	}
	switch {
	case m.Goodbye:
		s.goodbye = true
	case m.Adopt != nil && fd >= 0:
		q, err := s.adopt(m.Adopt, fd) // takes the descriptor
		if err != nil {
			s.log.Error("adopt queue", "queue", m.Queue, "error", err)
			return
		}
		s.drop(m.Queue)
		s.queues[m.Queue] = q
	case m.Journal != "" && fd >= 0 && s.lock < 0:
		s.path, s.lock = m.Journal, fd
	case fd >= 0:
		_ = unix.Close(fd)
	case m.Change != nil:
		s.journal.Set(m.Queue, *m.Change)
	case m.Forget:
		s.journal.Forget(m.Queue)
		s.drop(m.Queue)
	}
}

// drop closes the guardian's copy of a queue's descriptor. It may be the last copy, and then
// close(2) calls the driver, which may hang. So it does not wait: while no message is read, no
// change can be undone.
func (s *server) drop(id sched.QueueID) {
	if q := s.queues[id]; q != nil {
		delete(s.queues, id)
		go func() { _ = hal.Abandon(q) }()
	}
}

// unlock releases the lock of the journal on disk. A thread that hangs in a driver call keeps this
// process, and the locked file open.
func (s *server) unlock() {
	if s.lock >= 0 {
		_ = unix.Flock(s.lock, unix.LOCK_UN)
	}
}

// undo undoes all changes in the journal.
func (s *server) undo() error {
	var tasks []Task
	for _, a := range s.journal.Undo() {
		i := slices.IndexFunc(tasks, func(t Task) bool { return t.Actions[0].Queue == a.Queue })
		if i < 0 {
			i = len(tasks)
			tasks = append(tasks, s.task(a.Queue))
		}
		tasks[i].Actions = append(tasks[i].Actions, a)
	}
	s.log.Warn("daemon exited without a clean shutdown; restoring", "queues", len(tasks))
	// The journal on disk is opened when the first queue is undone: it may be large, or on a disk that
	// hangs.
	store := sync.OnceValue(s.openStore)
	for i, t := range tasks {
		tasks[i].Undone = func() {
			if err := store().ForgetQueue(t.Actions[0].Queue); err != nil {
				s.log.Warn("change was undone and stays in the journal", "error", err)
			}
		}
	}
	defer s.unlock()
	return Undo(tasks, s.log)
}

// openStore opens the journal on disk, whose lock this process has; nil: there is none.
func (s *server) openStore() *journal.Store {
	if s.path == "" {
		return nil
	}
	store, err := journal.OpenLocked(s.path, s.log)
	if err != nil {
		s.log.Error("journal on disk is not updated; the next daemon undoes all changes again", "error", err)
		return nil
	}
	return store
}

func (s *server) task(id sched.QueueID) Task {
	return Task{Name: fmt.Sprint("queue ", id), Open: func() (hal.Queue, error) {
		if q := s.queues[id]; q != nil {
			return q, nil
		}
		return nil, errors.New("the daemon did not send its descriptor")
	}}
}
