// Package guardian sees to it that nothing stays changed when the daemon dies,
// however it dies.
//
// The guardian is a small process of its own. For every queue the daemon gives
// it a copy of the descriptor and says how the queue was found; before every
// action the daemon says what it is about to do, and after it how that came out.
// When the daemon's end of the socket closes without a farewell, the guardian
// reads what is left in the socket and undoes what the journal says: slices
// before starts.
//
// The kernel closes a process's descriptors when its last thread is gone, and a
// thread inside a driver's call is not: so by then no call of the daemon's is
// under way.
package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/sched"
)

// message is what the daemon says, one a packet.
type message struct {
	Adopt  json.RawMessage `json:"adopt,omitempty"` // how the queue was found; a descriptor comes with it
	Queue  sched.QueueID   `json:"queue,omitempty"`
	Begin  *sched.Action   `json:"begin,omitempty"`
	End    *sched.Action   `json:"end,omitempty"`
	Came   sched.Outcome   `json:"came,omitempty"` // of End
	Forget bool            `json:"forget,omitempty"`
	Bye    bool            `json:"bye,omitempty"`
}

// Env is set for a guardian and all that it might start: whatever program is taken
// for one by mistake must not start another daemon.
const Env = "GIVEWAY_GUARDIAN"

// maxMessage bounds a packet: a group has some hundred channels at most.
const maxMessage = 64 << 10

// patience is how long the daemon waits for the guardian to take a message.
const patience = time.Second

// Guardian is the daemon's end.
type Guardian struct {
	mu   sync.Mutex
	fd   int
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has gone
}

// Start starts the guardian: argv is the program, which must call Keep on
// descriptor 3.
func Start(argv ...string) (*Guardian, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = append(os.Environ(), Env+"=1")
	cmd.Stderr = os.Stderr
	// A session of its own: what is sent to the daemon's group or terminal is
	// not for the guardian.
	cmd.SysProcAttr = newSession()
	if err := cmd.Start(); err != nil {
		_ = unix.Close(ours)
		return nil, fmt.Errorf("start the guardian: %w", err)
	}
	g := &Guardian{fd: ours, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(g.done)
	}()
	return g, nil
}

// pair makes the two ends of the socket.
func pair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("socket to the guardian: %w", err)
	}
	limit := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return 0, nil, fmt.Errorf("socket to the guardian: %w", err)
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "daemon"), nil
}

// PID is the guardian's.
func (g *Guardian) PID() int { return g.cmd.Process.Pid }

// Gone is closed when the guardian has died.
func (g *Guardian) Gone() <-chan struct{} { return g.done }

// Adopt entrusts a queue to the guardian: how it was found, and a descriptor,
// which stays the caller's.
func (g *Guardian) Adopt(id sched.QueueID, found any, fd int) error {
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return g.send(message{Adopt: text, Queue: id}, fd)
}

// Begin says that an action is about to be carried out. If it returns an error
// the action must not be: nobody would undo it.
func (g *Guardian) Begin(a sched.Action) error { return g.send(message{Begin: &a}) }

// End says how it came out.
func (g *Guardian) End(a sched.Action, came sched.Outcome) error {
	return g.send(message{End: &a, Came: came})
}

// Forget says that a queue is no more.
func (g *Guardian) Forget(id sched.QueueID) error { return g.send(message{Forget: true, Queue: id}) }

// Close takes leave: everything has been undone. It waits for the guardian to
// go.
func (g *Guardian) Close() error {
	err := g.send(message{Bye: true})
	g.mu.Lock()
	if g.fd >= 0 {
		err = errors.Join(err, unix.Close(g.fd))
		g.fd = -1
	}
	g.mu.Unlock()
	select {
	case <-g.done:
	case <-time.After(5 * time.Second):
		err = errors.Join(err, errors.New("the guardian does not go"), g.cmd.Process.Kill())
	}
	return err
}

func (g *Guardian) send(m message, fds ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("a message of %d bytes to the guardian", len(text))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd < 0 {
		return errors.New("the guardian has been taken leave of")
	}
	for {
		err := unix.Sendmsg(g.fd, text, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				err = fmt.Errorf("tell the guardian: %w", err)
			}
			return err
		}
	}
}
