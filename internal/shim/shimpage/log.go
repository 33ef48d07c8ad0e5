package shimpage

import (
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Hint is a hint that a process has given about itself.
type Hint struct {
	Kind  HintKind
	Value int64
	At    uint64 // on the clock of Monotonic
}

// Request is a request that a process has finished.
type Request struct {
	Begin    uint64 // on the clock of Monotonic
	Duration time.Duration
}

// maxRequest is the longest valid duration of a request.
const maxRequest = time.Hour

// firstUnread returns the first entry of a ring that has not been read yet. If the count
// makes no sense it is the oldest entry that the ring can hold.
func firstUnread(read, count, size uint64) uint64 {
	if count-read > size { // too many at once, or fewer than before
		return count - min(count, size)
	}
	return read
}

// advance returns the range of entries of a ring that have not been read yet, the oldest of them
// if there are more than limit, and counts them as read.
func (p *Page) advance(count func(*pageabi.Page) uint64, read *uint64, size, limit uint64) (from, to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return 0, 0
	}
	to = count(p.page)
	from = firstUnread(*read, to, size)
	to = from + min(to-from, limit)
	*read = to
	return from, to
}

// Hints calls f with the hints given since the last call, but at most the newest 32.
func (p *Page) Hints(f func(Hint)) { p.SomeHints(pageabi.HintEntries, f) }

// SomeHints is Hints for at most limit hints. The next call returns the others.
func (p *Page) SomeHints(limit int, f func(Hint)) {
	from, to := p.advance(func(g *pageabi.Page) uint64 { return g.Hints.Load() }, &p.hints, pageabi.HintEntries, uint64(limit))
	for i := from; i != to; i++ {
		if h, ok := p.hint(i); ok {
			f(h)
		}
	}
}

func (p *Page) hint(i uint64) (h Hint, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return h, false
	}
	e := &p.page.Ring[i%pageabi.HintEntries]
	seq := e.Seq.Load()
	h = Hint{HintKind(atomic.LoadUint32(&e.Kind)), atomic.LoadInt64(&e.Value), min(atomic.LoadUint64(&e.At), pageabi.Now())}
	// The process writes the count after the hint. So an entry with another number has been
	// overwritten meanwhile, or was given on an earlier page.
	if ok = seq == uint32(i+1) && e.Seq.Load() == seq; !ok && seq != 0 {
		p.invalid++
	}
	return h, ok
}

// Requests calls f with the requests that ended since the last call, but at most the newest
// 64.
func (p *Page) Requests(f func(Request)) { p.SomeRequests(pageabi.RequestEntries, f) }

// SomeRequests is Requests for at most limit requests. The next call returns the others.
func (p *Page) SomeRequests(limit int, f func(Request)) {
	from, to := p.advance(func(g *pageabi.Page) uint64 { return g.Requests.Load() }, &p.requests, pageabi.RequestEntries, uint64(limit))
	for i := from; i != to; i++ {
		if r, ok := p.request(i); ok {
			f(r)
		}
	}
}

func (p *Page) request(i uint64) (r Request, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return r, false
	}
	e := &p.page.Log[i%pageabi.RequestEntries]
	begin, end := e.Begin.Load(), min(e.End.Load(), pageabi.Now())
	if begin == 0 {
		return r, false // it was logged on an earlier page
	}
	if begin > end || end-begin > uint64(maxRequest) {
		p.invalid++
		return r, false
	}
	return Request{begin, time.Duration(end - begin)}, true
}
