package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// Adopter makes a queue of what the daemon said of it and the descriptor that
// came with that, which is then the queue's.
type Adopter func(found json.RawMessage, fd int) (hal.Queue, error)

// Limits on undoing: a call that is refused is made again until there is no
// point in it.
const (
	undoPause = 2 * time.Millisecond
	undoTries = 400
)

// Keep is the life of the guardian: it listens on a descriptor until the daemon
// has gone, and undoes what is left if that was without a farewell.
func Keep(fd int, adopt Adopter, log *slog.Logger) error {
	k := &keeper{adopt: adopt, queues: make(map[sched.QueueID]hal.Queue), log: log}
	k.steel()
	buf := make([]byte, maxMessage)
	for {
		n, received, err := receive(fd, buf)
		switch {
		case err != nil || n == 0:
			if k.bye {
				return nil
			}
			if err != nil {
				log.Error("listening to the daemon", "error", err)
			}
			return k.undo()
		default:
			k.hear(buf[:n], received)
		}
	}
}

type keeper struct {
	adopt   Adopter
	journal journal.Journal
	queues  map[sched.QueueID]hal.Queue
	bye     bool
	log     *slog.Logger
}

// steel has the kernel take others first when memory runs out. An ordinary
// user's guardian may not; it does without.
func (k *keeper) steel() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// receive reads one packet and the descriptor that comes with it, or -1.
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

func (k *keeper) hear(text []byte, fd int) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		k.log.Error("the daemon says nonsense", "error", err)
		return
	}
	switch {
	case m.Bye:
		k.bye = true
	case m.Adopt != nil && fd >= 0:
		q, err := k.adopt(m.Adopt, fd)
		if err != nil {
			k.log.Error("adopt", "queue", m.Queue, "error", err)
			return
		}
		k.queues[m.Queue] = q
	case m.Begin != nil:
		k.journal.Begin(*m.Begin)
	case m.End != nil:
		k.journal.End(*m.End, m.Came)
	case m.Forget:
		k.journal.Forget(m.Queue)
		k.drop(m.Queue)
	}
}

// drop closes our copy of a descriptor.
func (k *keeper) drop(id sched.QueueID) {
	if q := k.queues[id]; q != nil {
		delete(k.queues, id)
		_ = hal.Abandon(q)
	}
}

// undo puts everything back.
func (k *keeper) undo() error {
	todo := k.journal.Undo()
	k.log.Warn("the daemon has gone without a farewell", "to undo", len(todo))
	var errs []error
	for _, a := range todo {
		if err := k.undoOne(a); err != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", a.Queue, err))
		}
	}
	return errors.Join(errs...)
}

func (k *keeper) undoOne(a sched.Action) error {
	q := k.queues[a.Queue]
	if q == nil {
		return errors.New("nobody entrusted it to the guardian")
	}
	var err error
	for range undoTries {
		err = hal.Do(q, a)
		if err == nil || errors.Is(err, hal.ErrGone) {
			return nil
		}
		time.Sleep(undoPause)
	}
	return err
}
