package hint

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

// mail carries hints over the control socket, in order, for a process whose page is
// the preload library's: a second page would take the place of the first, and of its
// gate. Slower than a page, but nobody waits for it.
type mail struct {
	connected atomic.Bool
	begun     atomic.Int64

	mu      sync.Mutex
	waiting []letter
	sending bool
}

type letter struct {
	hint   *api.Hint
	change *api.Change
}

// mostWaiting is how many letters may lie about; what comes on top is lost.
const mostWaiting = 256

// mailOfProcess is one for all sessions: the numbers of requests must differ.
var mailOfProcess = sync.OnceValue(func() *mail { return &mail{} })

// connect finds out whether there is a daemon.
func (m *mail) connect(ctx context.Context) error {
	c := client.New("")
	defer c.Close()
	_, err := c.Policy(ctx)
	m.connected.Store(err == nil)
	return err
}

// post reports whether the letter will be sent.
func (m *mail) post(l letter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The end of a request whose beginning went out must not be lost.
	if len(m.waiting) >= mostWaiting && (l.hint == nil || l.hint.End == nil) {
		return false
	}
	m.waiting = append(m.waiting, l)
	if !m.sending {
		m.sending = true
		go m.send()
	}
	return true
}

// send sends all there is.
func (m *mail) send() {
	c := client.New("")
	defer c.Close()
	for {
		m.mu.Lock()
		if len(m.waiting) == 0 {
			m.sending, m.waiting = false, nil
			m.mu.Unlock()
			return
		}
		l := m.waiting[0]
		m.waiting = m.waiting[1:]
		m.mu.Unlock()
		m.connected.Store(l.send(c) == nil)
	}
}

func (l letter) send(c *client.Client) (err error) {
	if l.change != nil {
		_, err = c.Change(context.Background(), os.Getpid(), *l.change)
	} else {
		_, err = c.Hint(context.Background(), os.Getpid(), *l.hint)
	}
	return err
}

func (m *mail) begin() (end func()) {
	id := m.begun.Add(1)
	if !m.post(letter{hint: &api.Hint{Begin: &id}}) {
		return func() {}
	}
	var ended atomic.Bool
	return func() {
		if !ended.Swap(true) {
			m.post(letter{hint: &api.Hint{End: &id}})
		}
	}
}
