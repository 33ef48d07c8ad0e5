// Package guardian undoes all changes to queues when the daemon dies, even by
// SIGKILL.
//
// The guardian is a small process of its own. For every queue the daemon sends
// it a copy of the descriptor and the state in which the queue was found. The
// daemon also reports what is changed of the queue, before it makes a change and
// after it undid one. When the daemon's end of the socket closes without a goodbye
// message, the guardian reads the messages left in the socket and undoes the
// changes in its journal: slices before starts. It removes them from the journal
// on disk too, which it keeps locked meanwhile.
//
// The kernel closes a process's descriptors when its last thread has exited, and
// a thread inside a driver call has not. So when the socket closes, no call of
// the daemon is in progress.
package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// message is one packet from the daemon to the guardian.
type message struct {
	Adopt   json.RawMessage `json:"adopt,omitempty"` // the state in which the queue was found; a descriptor comes with it
	Queue   sched.QueueID   `json:"queue,omitempty"`
	Change  *journal.Change `json:"change,omitempty"` // all that may be changed of the queue
	Forget  bool            `json:"forget,omitempty"`
	Goodbye bool            `json:"goodbye,omitempty"` // all changes are undone
	Journal string          `json:"journal,omitempty"` // the path of the journal on disk; the locked file comes with it
}

// Env is set in the environment of a guardian. A program that finds it set must
// not start a daemon: it may have been started as a guardian by mistake.
const Env = "GIVEWAY_GUARDIAN"

// Self is the program of this process as it was when it was started, even if its file was
// moved, deleted or replaced by another version since. The kernel resolves it in the new
// process before that runs anything else.
const Self = "/proc/self/exe"

// maxMessage is the largest packet: a channel group has a few hundred channels at most.
const maxMessage = 64 << 10

// sendTimeout is how long the daemon waits for the guardian to take a message.
const sendTimeout = time.Second

// ErrUnreachable means that the guardian has exited, or takes no messages: it does not know
// what is changed.
var ErrUnreachable = errors.New("the guardian takes no messages")

// Guardian is the daemon's connection to its guardian process.
type Guardian struct {
	mu     sync.Mutex
	fd     int
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has exited
	gone   chan struct{} // closed when it has exited or was killed
	end    sync.Once     // closes gone
}

// Start starts the guardian process. Argv is its command line, of which the first
// is usually Self; the program must call Run with descriptor 3.
func Start(argv ...string) (*Guardian, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	if argv[0] == Self {
		cmd.Args[0] = os.Args[0] // for ps
	}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = append(os.Environ(), Env+"=1")
	cmd.Stderr = os.Stderr
	// In a session of its own, the guardian gets no signals that are sent to the
	// daemon's process group or terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := proc.Start(cmd); err != nil {
		_ = unix.Close(ours)
		return nil, fmt.Errorf("start the guardian: %w", err)
	}
	g := &Guardian{fd: ours, cmd: cmd, exited: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(g.exited)
		g.end.Do(func() { close(g.gone) })
	}()
	return g, nil
}

// pair returns the two ends of a new socket.
func pair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("socket to the guardian: %w", err)
	}
	limit := unix.NsecToTimeval(int64(sendTimeout))
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return 0, nil, fmt.Errorf("socket to the guardian: %w", err)
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "daemon"), nil
}

// PID returns the process ID of the guardian.
func (g *Guardian) PID() int { return g.cmd.Process.Pid }

// Exited returns a channel that is closed when the guardian has exited.
func (g *Guardian) Exited() <-chan struct{} { return g.exited }

// Gone returns a channel that is closed when the guardian has exited or was killed. A killed
// guardian does nothing more, but it exits only when its last driver call has returned.
func (g *Guardian) Gone() <-chan struct{} { return g.gone }

// Adopt sends the guardian a queue: the state in which it was found, and a copy
// of its descriptor.
func (g *Guardian) Adopt(id sched.QueueID, found any, fd int) error {
	m, err := newAdopt(id, found)
	if err != nil {
		return err
	}
	return g.send(m, fd)
}

// CheckAdopt says why no guardian can be sent a queue that was found in this state.
func CheckAdopt(id sched.QueueID, found any) error {
	m, err := newAdopt(id, found)
	if err == nil {
		_, err = m.encode()
	}
	return err
}

func newAdopt(id sched.QueueID, found any) (message, error) {
	text, err := json.Marshal(found)
	return message{Adopt: text, Queue: id}, err
}

// Share tells the guardian of the journal on disk and shares its lock, so that no other
// daemon uses the journal before the guardian has undone all changes.
func (g *Guardian) Share(s *journal.Store) error {
	return g.send(message{Journal: s.Path()}, int(s.LockFile().Fd()))
}

// Change reports all that may be changed of a queue. It is called before an action that changes
// more, and after an action that undid something. If Change returns an error, the action must
// not be carried out: it would not be undone.
func (g *Guardian) Change(id sched.QueueID, c journal.Change) error {
	return g.send(message{Queue: id, Change: &c})
}

// Forget reports that a queue no longer exists.
func (g *Guardian) Forget(id sched.QueueID) error { return g.send(message{Forget: true, Queue: id}) }

// Close tells the guardian that all changes have been undone, and waits until it
// has exited or was killed.
func (g *Guardian) Close() error {
	err := g.send(message{Goodbye: true})
	g.mu.Lock()
	if g.fd >= 0 {
		err = errors.Join(err, unix.Close(g.fd))
		g.fd = -1
	}
	g.mu.Unlock()
	select {
	case <-g.gone:
	case <-time.After(5 * time.Second):
		err = errors.Join(err, errors.New("the guardian did not exit within 5 s; killed it"), g.cmd.Process.Kill())
	}
	return err
}

// Kill ends a guardian that does not take messages, without letting it undo anything: the
// daemon is running, and the next guardian is told everything.
func (g *Guardian) Kill() {
	_ = g.cmd.Process.Kill() // first: the end of the connection makes it undo all changes
	g.end.Do(func() { close(g.gone) })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd >= 0 {
		_ = unix.Close(g.fd)
		g.fd = -1
	}
}

// encode returns a message as it is sent.
func (m message) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err == nil && len(text) > maxMessage {
		err = fmt.Errorf("message to the guardian: %d bytes is more than %d", len(text), maxMessage)
	}
	return text, err
}

func (g *Guardian) send(m message, fds ...int) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd < 0 {
		return fmt.Errorf("message to the guardian: %w: the connection is closed", ErrUnreachable)
	}
	for {
		err := unix.Sendmsg(g.fd, text, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			switch {
			case errors.Is(err, unix.EMSGSIZE): // more than the socket takes; others get through
				err = fmt.Errorf("message to the guardian: %d bytes: %w", len(text), err)
			case err != nil:
				err = fmt.Errorf("message to the guardian: %w: %w", ErrUnreachable, err)
			}
			return err
		}
	}
}
