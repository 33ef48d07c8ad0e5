package daemon

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// takeHint applies a hint that a process wrote to its page. It reports whether that
// changed an attribute; an invalid hint changes nothing and is counted. d.mu is held.
func (d *Daemon) takeHint(p *process, kind uint32, value int64) (changed bool) {
	was := p.attrs
	id, ok := attr.ByHintKind(kind)
	switch {
	case !ok:
	case id == attr.Idempotent: // any value but 0 is true
		p.idempotent = new(value != 0)
		p.merge()
		return p.attrs != was
	case id == attr.Expect:
		var at sched.Time
		at, ok = d.schedTime(value)
		ok = ok && p.mayAnnounce(at)
		value = int64(at)
	default:
		ok = id.Of(value).Check(attr.ByPage) == nil
	}
	if !ok {
		p.invalid++
		return false
	}
	p.give(attr.FromHint, id.Of(value))
	return p.attrs != was
}

// schedTime converts CLOCK_MONOTONIC nanoseconds to the scheduler's time. A time long past
// or far ahead is invalid.
func (d *Daemon) schedTime(mono int64) (sched.Time, bool) {
	if mono == 0 {
		return 0, true
	}
	const late = time.Second
	now := d.Now()
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0, false
	}
	at := now.Add(time.Duration(mono - ts.Nano()))
	return at, at > 0 && at > now.Add(-late) && at <= now.Add(time.Duration(attr.Expect.Row().Max))
}

// maxUnmet is how many requests in a row a process may announce without launching anything.
const maxUnmet = 16

// announcements counts the requests that a process announced and that did not come.
type announcements struct {
	launched uint64 // commands that were launched at the last announcement
	unmet    int    // announcements since then
}

// mayAnnounce reports whether to act on the announcement that a request arrives at a time; 0
// takes back an announcement. The device is cleared for an announced request, so a process
// that announces requests and launches nothing may announce no more until it launches again.
// Without counters nothing is known. d.mu is held.
func (p *process) mayAnnounce(at sched.Time) bool {
	a := &p.announced
	if at == 0 || !p.counters.Known {
		return true
	}
	if p.counters.Launched != a.launched {
		a.launched, a.unmet = p.counters.Launched, 0
	}
	a.unmet++
	return a.unmet <= maxUnmet
}

// Hint implements server.Node.
func (d *Daemon) Hint(by server.Caller, pid int, h api.Hint) (api.Process, error) {
	if err := h.Check(); err != nil {
		return api.Process{}, server.BadRequest("%w", err)
	}
	if by.All {
		h.Values = h.Values.Unlimited()
	}
	p, err := d.target(by, pid)
	if err != nil {
		return api.Process{}, err
	}
	d.mu.Lock()
	if err = errExited(pid); d.processByID(p.info.ID()) == p {
		err = d.applyHint(p, h)
		d.noteReduced(p)
	}
	d.mu.Unlock()
	if err != nil {
		return api.Process{}, err
	}
	return d.description(p), nil
}

// applyHint applies a hint that came through the API. d.mu is held.
func (d *Daemon) applyHint(p *process, h api.Hint) error {
	v := h.Values
	if in, _ := v.Get(attr.Expect); in > 0 && !p.mayAnnounce(1) {
		return server.TooMany("announce a request of process %d: %d were announced, and the process has launched nothing since", p.info.PID, maxUnmet)
	}
	if err := d.applyMark(p, h); err != nil {
		return err
	}
	if v.Clears(attr.Expect) {
		p.expectAt = time.Time{}
	}
	if in, ok := v.Get(attr.Expect); ok {
		at := sched.Time(0) // unknown
		p.expectAt = time.Time{}
		if in > 0 {
			at, p.expectAt = d.Now().Add(time.Duration(in)), time.Now().Add(time.Duration(in))
		}
		v.Set(attr.Expect, int64(at)) // has no limit
	}
	p.give(attr.FromHint, v)
	d.announce(p)
	return nil
}
