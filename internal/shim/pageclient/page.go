package pageclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	retry    = time.Second // between two attempts to find a daemon
	helloFor = time.Second // how long one may take that nobody waits for
)

// ErrLibrary is that the preload library is in this process. The page is the library's
// then, and its gate the one that holds: a second page would take its place.
var ErrLibrary = errors.New("the preload library speaks for this process")

// Page is what this process tells the daemon. It is safe for concurrent use; only
// Connect and Enter wait for anything.
type Page struct {
	dialing chan struct{} // holds a token while somebody looks for a daemon

	mu       sync.Mutex
	at       *lodging // nil: nobody to tell
	next     time.Time
	standing [kinds]struct {
		told  bool
		value int64
	}
	hints    uint64
	bell     uint32
	open     uint32 // requests
	begun    int64  // so far: the number of the last one
	requests uint64
	explicit bool // the program says itself what a request is

	activity
}

// NewPage returns a page that nobody reads yet. There is to be one for a process: the
// daemon listens to the newest only.
func NewPage() *Page {
	return &Page{dialing: make(chan struct{}, 1), activity: activity{moved: make(chan struct{})}}
}

// OfProcess is the page of this process.
var OfProcess = sync.OnceValue(NewPage)

// Connected reports whether a daemon listens.
func (p *Page) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at != nil
}

// Connect finds a daemon. It says why there is none; one that comes later is found
// by itself, at the next hint.
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

// attach is for who holds the token.
func (p *Page) attach(ctx context.Context) error {
	l, err := dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = time.Now().Add(retry)
	if err != nil {
		return err
	}
	p.at = l
	p.publish()
	go func() {
		l.untilOver()
		p.detach(l)
	}()
	return nil
}

// look has somebody look for a daemon, if nobody did so of late. p.mu is held.
func (p *Page) look() {
	if time.Now().Before(p.next) {
		return
	}
	select {
	case p.dialing <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-p.dialing }()
		ctx, cancel := context.WithTimeout(context.Background(), helloFor)
		defer cancel()
		_ = p.attach(ctx) // the next hint tries again
	}()
}

func (p *Page) detach(l *lodging) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == l {
		p.at = nil
	}
	l.over = true
	wakeAll(&l.page.gate)
	p.leave(l)
}

// leave gives the memory back when nobody looks at it any more. p.mu is held.
func (p *Page) leave(l *lodging) {
	if l.over && l.users == 0 {
		l.close()
	}
}

// publish writes all that a new daemon should know. p.mu is held.
func (p *Page) publish() {
	g := p.at.page
	g.hints.Store(p.hints)
	g.requests.Store(p.requests)
	g.open.Store(p.open)
	p.showActivity()
	for kind, s := range p.standing {
		if s.told {
			p.hint(Kind(kind), s.value)
		}
	}
}

// Hint tells the daemon something, and reports whether there is one. What holds until
// it is taken back is told to later daemons too.
func (p *Page) Hint(kind Kind, value int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind != Expect {
		p.standing[kind].told, p.standing[kind].value = true, value
	}
	return p.hint(kind, value)
}

func (p *Page) hint(kind Kind, value int64) bool {
	if p.at == nil {
		p.look()
		return false
	}
	g := p.at.page
	e := &g.ring[p.hints%maxHints]
	p.hints++
	e.seq.Store(0) // who reads it now knows that it is being written
	e.kind, e.value, e.at = uint32(kind), value, monotonic()
	e.seq.Store(uint32(p.hints))
	g.hints.Store(p.hints)
	p.ring()
	return true
}

// ring wakes the daemon, if it sleeps. p.mu is held, and there is a page.
func (p *Page) ring() {
	p.bell++
	p.at.page.bell.Store(p.bell) // before the look at the board, or both sides sleep
	if p.at.board.asleep.Load() != 0 {
		p.at.ring()
	}
}

// Begin tells that a request begins. The function that it returns tells that it has
// ended; twice equals once.
func (p *Page) Begin() (over func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := monotonic()
	p.explicit = true
	p.begun++
	id := p.begun
	p.changeOpen(+1)
	p.hint(begin, id)
	var ended atomic.Bool
	return func() {
		if ended.Swap(true) {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.logRequest(began, monotonic())
		p.changeOpen(-1)
		p.hint(end, id)
	}
}

func (p *Page) changeOpen(by int) {
	p.open += uint32(by)
	if p.at != nil {
		p.at.page.open.Store(p.open)
	}
}

// logRequest reports whether the daemon wants to be told at once.
func (p *Page) logRequest(began, ended uint64) bool {
	n := p.requests
	p.requests++
	if p.at == nil {
		return false
	}
	g := p.at.page
	g.log[n%maxRequests].begin.Store(began)
	g.log[n%maxRequests].end.Store(ended)
	g.requests.Store(p.requests)
	return g.watch.Load()&watchRequests != 0
}

// clock is one moment on Go's clock and on the machine's, as near to each other as a
// few tries bring them.
var clock = func() (c struct {
	at   time.Time
	mono uint64
},
) {
	best := time.Hour
	for range 5 {
		before := time.Now()
		mono := machineClock()
		if took := time.Since(before); took < best {
			best, c.at, c.mono = took, before, mono
		}
	}
	return c
}()

// monotonic is now, as the page has it.
func monotonic() uint64 { return clock.mono + uint64(time.Since(clock.at)) }

// In is a time from now, as Expect wants it; 0: not known. One below zero is none, which
// the daemon ignores and counts.
func In(d time.Duration) int64 {
	switch {
	case d == 0:
		return 0
	case d < 0:
		return -1
	}
	return int64(monotonic()) + int64(d)
}
