// Package pageclient is a process's side of the page that it shares with the daemon, for Go
// programs, into which the shim cannot be loaded. It does what shim/page.c,
// shim/hint.c and shim/gate.c do for other programs: a hint is a few stores to memory, and
// commands of package queue pass the gate.
//
// It fails open. If there is no daemon, the daemon dies or hangs, or the memory is not as
// shim/abi.h defines it, then hints go nowhere and no command waits.
package pageclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

const (
	retryInterval = time.Second     // between two attempts to connect
	dialTimeout   = 5 * time.Second // of an attempt in the background: the daemon may be busy, and another attempt would wait behind others again
)

// ErrLibrary means that the shim is loaded in this process. The shim has the
// page then, and its gate holds the process: a second page would replace it.
var ErrLibrary = errors.New("the shim has this process's page")

// Page is this process's page. It is safe for concurrent use. Only Connect and Enter wait.
type Page struct {
	dialing chan struct{} // holds a token while a goroutine connects

	mu       sync.Mutex
	conn     *connection // nil: there is no daemon
	nextDial time.Time
	lasting  [pageabi.HintKinds]struct { // hints that hold until they are replaced
		given bool
		value int64
	}
	hints         uint64
	doorbell      uint32
	openRequests  uint32
	lastRequestID int64
	requests      uint64
	explicit      bool // the program calls Begin itself

	activity
}

// NewPage returns a page that is not connected. A process should have only one, because the
// daemon reads the newest page of a process only.
func NewPage() *Page {
	return &Page{dialing: make(chan struct{}, 1), activity: activity{progress: make(chan struct{})}}
}

// ProcessPage returns the page of this process.
var ProcessPage = sync.OnceValue(NewPage)

// Connected reports whether the page is connected to a daemon.
func (p *Page) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil
}

// Connect connects to the daemon, or returns why it cannot. Later hints and commands connect
// to a daemon that starts later.
func (p *Page) Connect(ctx context.Context) error {
	select {
	case p.dialing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.dialing }()
	if p.Connected() {
		return nil
	}
	return p.attach(ctx)
}

// attach connects to the daemon. The caller holds the dialing token.
func (p *Page) attach(ctx context.Context) error {
	c, err := dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextDial = time.Now().Add(retryInterval)
	if err != nil {
		return err
	}
	p.conn = c
	p.publish()
	go func() {
		c.waitForEnd()
		p.detach(c)
	}()
	return nil
}

// attachSoon connects in the background, unless there was an attempt within the last
// retryInterval. p.mu is held.
func (p *Page) attachSoon() {
	if time.Now().Before(p.nextDial) {
		return
	}
	select {
	case p.dialing <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-p.dialing }()
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		_ = p.attach(ctx) // the next hint tries again
	}()
}

func (p *Page) detach(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == c {
		p.conn = nil
	}
	c.ended = true
	pageabi.WakeAll(&c.page.Gate)
	p.closeUnused(c)
}

// closeUnused unmaps the memory of an ended connection when no goroutine uses it any more.
// p.mu is held.
func (p *Page) closeUnused(c *connection) {
	if c.ended && c.users == 0 {
		c.close()
	}
}

// publish writes the current state to the page of a new daemon. p.mu is held.
func (p *Page) publish() {
	g := p.conn.page
	g.Hints.Store(p.hints)
	g.Requests.Store(p.requests)
	g.OpenRequests.Store(p.openRequests)
	p.writeActivity()
	for kind, h := range p.lasting {
		if h.given {
			p.writeHint(pageabi.HintKind(kind), h.value)
		}
	}
}

// Hint gives the daemon a hint and reports whether there is a daemon. All hints but
// HintExpect hold until they are replaced, and are given to later daemons too.
func (p *Page) Hint(kind pageabi.HintKind, value int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind != pageabi.HintExpect {
		p.lasting[kind].given, p.lasting[kind].value = true, value
	}
	return p.writeHint(kind, value)
}

func (p *Page) writeHint(kind pageabi.HintKind, value int64) bool {
	if p.conn == nil {
		p.attachSoon()
		return false
	}
	g := p.conn.page
	e := &g.Ring[p.hints%pageabi.HintEntries]
	p.hints++
	e.Seq.Store(0) // a reader sees that the entry is being written
	e.Kind, e.Value, e.At = uint32(kind), value, pageabi.Now()
	e.Seq.Store(uint32(p.hints))
	g.Hints.Store(p.hints)
	p.ring()
	return true
}

// ring rings the doorbell. p.mu is held and p.conn is not nil.
func (p *Page) ring() {
	p.doorbell++
	p.conn.page.Doorbell.Store(p.doorbell) // before Asleep is read: see shimpage.Doorbells
	if p.conn.status.Asleep.Load() != 0 {
		pageabi.Ring(p.conn.doorbell)
	}
}

// Begin says that a request begins. The returned function says that it ends; only its first
// call counts.
func (p *Page) Begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := pageabi.Now()
	p.explicit = true
	p.lastRequestID++
	id := p.lastRequestID
	p.addOpenRequests(+1)
	p.writeHint(pageabi.HintBegin, id)
	var ended atomic.Bool
	return func() {
		if ended.Swap(true) {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.logRequest(began, pageabi.Now())
		p.addOpenRequests(-1)
		p.writeHint(pageabi.HintEnd, id)
	}
}

func (p *Page) addOpenRequests(n int) {
	p.openRequests += uint32(n)
	if p.conn != nil {
		p.conn.page.OpenRequests.Store(p.openRequests)
	}
}

// logRequest adds a request to the log and reports whether the doorbell is to be rung for
// it.
func (p *Page) logRequest(began, ended uint64) bool {
	n := p.requests
	p.requests++
	if p.conn == nil {
		return false
	}
	g := p.conn.page
	g.Log[n%pageabi.RequestEntries].Begin.Store(began)
	g.Log[n%pageabi.RequestEntries].End.Store(ended)
	g.Requests.Store(p.requests)
	return g.Watch.Load()&pageabi.WatchRequests != 0
}

// After returns the time d from now as the value of HintExpect. Zero stays zero: unknown. A
// negative d becomes -1, which the daemon ignores and counts.
func After(d time.Duration) int64 {
	switch {
	case d == 0:
		return 0
	case d < 0:
		return -1
	}
	return int64(pageabi.Now()) + int64(d)
}
