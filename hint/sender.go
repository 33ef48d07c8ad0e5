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
// process in which the shim has the page: a second page would replace that page
// and its gate. It is slower than a page, but the caller does not wait for it.
type sender struct {
	connected atomic.Bool
	lastID    atomic.Int64 // of a request

	mu      sync.Mutex
	waiting []api.Hint
	sending bool
}

// maxWaiting is how many hints may wait to be sent. Further ones are dropped.
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

// post reports whether the hint will be sent.
func (s *sender) post(h api.Hint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The end of a request is never dropped: its begin was sent.
	if len(s.waiting) >= maxWaiting && h.End == nil {
		return false
	}
	s.waiting = append(s.waiting, h)
	if !s.sending {
		s.sending = true
		go s.sendAll()
	}
	return true
}

// sendAll sends hints until none is waiting.
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
		h := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		_, err := c.Hint(context.Background(), os.Getpid(), h)
		s.connected.Store(err == nil)
	}
}

func (s *sender) begin() (end func()) {
	id := s.lastID.Add(1)
	if !s.post(api.Hint{Begin: &id}) {
		return func() {}
	}
	var ended atomic.Bool
	return func() {
		if !ended.Swap(true) {
			s.post(api.Hint{End: &id})
		}
	}
}
