package shimpage

import "time"

// Hint is something that a program says of itself.
type Hint struct {
	Kind  HintKind
	Value int64
	At    uint64 // monotonic
}

// Request is something that a program was asked for and has done.
type Request struct {
	Begin    uint64 // monotonic
	Duration time.Duration
}

// longest is how long a request may take and be believed.
const longest = time.Hour

// pending is the part of a ring that has not been taken yet: all of it, if its
// count makes no sense.
func pending(taken, count, size uint64) (from uint64) {
	if count-taken > size { // too many at once, or fewer than before
		return count - min(count, size)
	}
	return taken
}

// take takes what a ring has that has not been taken yet.
func (p *Page) take(count func(*page) uint64, taken *uint64, size uint64) (from, to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return 0, 0
	}
	to = count(p.page)
	from, *taken = pending(*taken, to, size), to
	return from, to
}

// Hints calls f with the hints given since the last call: the newest 32 at most.
func (p *Page) Hints(f func(Hint)) {
	from, to := p.take(func(g *page) uint64 { return g.hints.Load() }, &p.hints, maxHints)
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
	e := &p.page.ring[i%maxHints]
	seq := e.seq.Load()
	h = Hint{HintKind(e.kind.Load()), e.value.Load(), min(e.at.Load(), now())}
	// The count is written after the hint, so one that is not what it should be
	// has been overwritten, or was given to an earlier page.
	if ok = seq == uint32(i+1) && e.seq.Load() == seq; !ok && seq != 0 {
		p.invalid++
	}
	return h, ok
}

// Requests calls f with the requests that ended since the last call: the newest 64
// at most.
func (p *Page) Requests(f func(Request)) {
	from, to := p.take(func(g *page) uint64 { return g.requests.Load() }, &p.requests, maxRequests)
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
	e := &p.page.log[i%maxRequests]
	begin, end := e.begin.Load(), min(e.end.Load(), now())
	if begin == 0 {
		return r, false // it is in the log of an earlier page
	}
	if begin > end || end-begin > uint64(longest) {
		p.invalid++
		return r, false
	}
	return Request{begin, time.Duration(end - begin)}, true
}
