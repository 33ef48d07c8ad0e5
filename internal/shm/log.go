package shm

import "time"

// Hint is something that a program says of itself.
type Hint struct {
	Kind  Kind
	Value int64
	At    uint64 // monotonic
}

// Request is something that a program was asked for and has done.
type Request struct {
	Begin uint64 // monotonic
	Took  time.Duration
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

// Hints calls f with the hints given since the last call: the newest 32 at most.
func (p *Page) Hints(f func(Hint)) {
	var all [maxHints]Hint
	for _, h := range all[:p.takeHints(&all)] {
		f(h)
	}
}

func (p *Page) takeHints(all *[maxHints]Hint) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return 0
	}
	count := p.page.hints.Load()
	if count == p.hints {
		return 0
	}
	i := pending(p.hints, count, maxHints)
	clock := now()
	for ; i != count; i++ {
		e := &p.page.ring[i%maxHints]
		seq := e.seq.Load()
		h := Hint{Kind(e.kind.Load()), e.value.Load(), min(e.at.Load(), clock)}
		// The count is written after the hint, so one that is not what it should be
		// has been overwritten, or was given to an earlier page.
		if seq != uint32(i+1) || e.seq.Load() != seq {
			if seq != 0 {
				p.nonsense++
			}
			continue
		}
		all[n] = h
		n++
	}
	p.hints = count
	return n
}

// Requests calls f with the requests that ended since the last call: the newest 64
// at most.
func (p *Page) Requests(f func(Request)) {
	var all [maxRequests]Request
	for _, r := range all[:p.takeRequests(&all)] {
		f(r)
	}
}

func (p *Page) takeRequests(all *[maxRequests]Request) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return 0
	}
	count := p.page.requests.Load()
	if count == p.requests {
		return 0
	}
	i := pending(p.requests, count, maxRequests)
	clock := now()
	for ; i != count; i++ {
		e := &p.page.log[i%maxRequests]
		begin, end := e.begin.Load(), min(e.end.Load(), clock)
		if begin == 0 {
			continue // it is in the log of an earlier page
		}
		if begin > end || end-begin > uint64(longest) {
			p.nonsense++
			continue
		}
		all[n] = Request{begin, time.Duration(end - begin)}
		n++
	}
	p.requests = count
	return n
}
