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

// Hints calls f with the hints given since the last call: the newest 32 at most, and
// few that come meanwhile. There is seldom more than one, so they are taken one by one.
func (p *Page) Hints(f func(Hint)) {
	for range maxHints {
		h, ok := p.nextHint()
		if !ok {
			return
		}
		f(h)
	}
}

func (p *Page) nextHint() (Hint, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return Hint{}, false
	}
	count := p.page.hints.Load()
	if count == p.hints {
		return Hint{}, false
	}
	for i := pending(p.hints, count, maxHints); i != count; i++ {
		e := &p.page.ring[i%maxHints]
		seq := e.seq.Load()
		h := Hint{Kind(e.kind.Load()), e.value.Load(), min(e.at.Load(), now())}
		// The count is written after the hint, so one that is not what it should be
		// has been overwritten, or was given to an earlier page.
		if seq == uint32(i+1) && e.seq.Load() == seq {
			p.hints = i + 1
			return h, true
		}
		if seq != 0 {
			p.nonsense++
		}
	}
	p.hints = count
	return Hint{}, false
}

// Requests calls f with the requests that ended since the last call: the newest 64
// at most, and few that end meanwhile.
func (p *Page) Requests(f func(Request)) {
	for range maxRequests {
		r, ok := p.nextRequest()
		if !ok {
			return
		}
		f(r)
	}
}

func (p *Page) nextRequest() (Request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return Request{}, false
	}
	count := p.page.requests.Load()
	if count == p.requests {
		return Request{}, false
	}
	for i := pending(p.requests, count, maxRequests); i != count; i++ {
		e := &p.page.log[i%maxRequests]
		begin, end := e.begin.Load(), min(e.end.Load(), now())
		if begin == 0 {
			continue // it is in the log of an earlier page
		}
		if begin <= end && end-begin <= uint64(longest) {
			p.requests = i + 1
			return Request{begin, time.Duration(end - begin)}, true
		}
		p.nonsense++
	}
	p.requests = count
	return Request{}, false
}
