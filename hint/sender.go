package hint

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

// sender sends hints over the control socket, in order and in the background. It is for a
// process in which the preload library has the page: a second page would replace that page
// and its gate. It is slower than a page, but the caller does not wait for it.
type sender struct {
	connected atomic.Bool
	lastID    atomic.Int64 // of a request

	mu      sync.Mutex
	waiting []message
	sending bool
}

// message is one call of the daemon's API. One of the fields is set.
type message struct {
	hint   *api.Hint
	change *api.Change
}

// maxWaiting is how many messages may wait to be sent. Further ones are dropped.
const maxWaiting = 256

// processSender returns the sender of this process. All sessions share it, because the ids of
// their requests must differ.
var processSender = sync.OnceValue(func() *sender { return &sender{} })

// connect checks whether there is a daemon.
func (s *sender) connect(ctx context.Context) error {
	c := client.New("")
	defer c.Close()
	_, err := c.Policy(ctx)
	s.connected.Store(err == nil)
	return err
}

// post reports whether the message will be sent.
func (s *sender) post(m message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The end of a request is never dropped: its begin was sent.
	if len(s.waiting) >= maxWaiting && (m.hint == nil || m.hint.End == nil) {
		return false
	}
	s.waiting = append(s.waiting, m)
	if !s.sending {
		s.sending = true
		go s.sendAll()
	}
	return true
}

// sendAll sends messages until none is waiting.
func (s *sender) sendAll() {
	c := client.New("")
	defer c.Close()
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.sending, s.waiting = false, nil
			s.mu.Unlock()
			return
		}
		m := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		s.connected.Store(m.send(c) == nil)
	}
}

func (m message) send(c *client.Client) (err error) {
	if m.change != nil {
		_, err = c.Change(context.Background(), os.Getpid(), *m.change)
	} else {
		_, err = c.Hint(context.Background(), os.Getpid(), *m.hint)
	}
	return err
}

func (s *sender) begin() (end func()) {
	id := s.lastID.Add(1)
	if !s.post(message{hint: &api.Hint{Begin: &id}}) {
		return func() {}
	}
	var ended atomic.Bool
	return func() {
		if !ended.Swap(true) {
			s.post(message{hint: &api.Hint{End: &id}})
		}
	}
}
