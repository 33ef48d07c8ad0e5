package shimpage

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// A page whose doorbell rings more than maxRings times within ringPeriod is muted for
// muteTime: it no longer wakes the loop, which still reads the page whenever it wakes for
// another reason.
const (
	maxRings   = 1000
	ringPeriod = 100 * time.Millisecond
	muteTime   = 10 * time.Millisecond
)

// Doorbells is the set of doorbells on which the daemon's loop sleeps.
//
// A process increments the doorbell word of its page and then writes to the eventfd only if
// the status page says that the daemon sleeps. So Wait sets that flag before it looks at
// all doorbell words for the last time: a process that has not seen the flag yet has
// incremented its word before that look.
type Doorbells struct {
	status *StatusPage
	epoll  int
	own    int         // an eventfd of the daemon itself: Wake writes to it
	timer  int         // ticks every maxSleep
	woken  atomic.Bool // Wake was called
	asleep atomic.Bool // Wait is about to sleep or sleeps

	mu     sync.Mutex
	bells  []*bell
	lastID int64
	muted  int // number of muted bells

	events [64]unix.EpollEvent // used by Wait
	fresh  int                 // how many of events are not counted yet
}

// bell is the doorbell of one page.
type bell struct {
	id         int64
	page       *Page
	rings      int
	countStart time.Time // when counting rings began
	mutedUntil time.Time // zero: not muted
}

// maxSleep is the longest that Wait sleeps. A periodic timer costs less than one that is set
// and cancelled for every sleep: on a virtual machine each of those is a trap.
const maxSleep = 100 * time.Millisecond

// timerID is the epoll id of the timer. The id of the daemon's own eventfd is 0, and those of
// pages count from 1.
const timerID = -1

// NewDoorbells returns an empty set.
func NewDoorbells(s *StatusPage) (*Doorbells, error) {
	d := &Doorbells{status: s, own: -1, timer: -1}
	var err error
	if d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if d.own, err = newDoorbell(); err == nil {
		err = d.control(unix.EPOLL_CTL_ADD, d.own, 0, edgeTriggered)
	}
	if err == nil {
		d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		interval := unix.NsecToTimespec(int64(maxSleep))
		err = unix.TimerfdSettime(d.timer, 0, &unix.ItimerSpec{Interval: interval, Value: interval}, nil)
	}
	if err == nil {
		err = d.control(unix.EPOLL_CTL_ADD, d.timer, timerID, edgeTriggered)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("create the set of doorbells: %w", err)
	}
	return d, nil
}

// edgeTriggered reports each ring once, so that the eventfd need not be read.
const edgeTriggered = unix.EPOLLIN | unix.EPOLLET

func (d *Doorbells) control(op int, fd int, id int64, events uint32) error {
	err := unix.EpollCtl(d.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(id), Pad: int32(id >> 32)})
	if err != nil {
		return fmt.Errorf("change the set of doorbells: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// Add adds the doorbell of a page.
func (d *Doorbells) Add(p *Page) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastID++
	if err := d.control(unix.EPOLL_CTL_ADD, p.doorbell, d.lastID, edgeTriggered); err != nil {
		return err
	}
	d.bells = append(d.bells, &bell{id: d.lastID, page: p})
	return nil
}

// Remove removes the doorbell of a page. It must be called before the page is closed, and
// does nothing if the page is not in the set.
func (d *Doorbells) Remove(p *Page) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.bells, func(b *bell) bool { return b.page == p })
	if i < 0 {
		return
	}
	if !d.bells[i].mutedUntil.IsZero() {
		d.muted--
	}
	_ = d.control(unix.EPOLL_CTL_DEL, p.doorbell, 0, 0)
	d.bells = slices.Delete(d.bells, i, i+1)
}

// Wake makes the current Wait return, or the next one if none is waiting.
func (d *Doorbells) Wake() {
	d.woken.Store(true)
	if d.asleep.Load() {
		pageabi.Ring(d.own)
	}
}

// Wait returns when a doorbell has rung or Wake was called, and after d or maxSleep at the
// latest. Only one goroutine may call it, best one that is locked to its thread.
func (d *Doorbells) Wait(timeout time.Duration) {
	d.count(d.events[:d.fresh]) // here, because it would delay what they rang for
	d.fresh = 0
	d.asleep.Store(true)
	d.status.SetAsleep(true)
	if timeout = d.lastLook(timeout); timeout > 0 {
		if timeout >= maxSleep {
			timeout = forever
		}
		if n, err := epollWait(d.epoll, d.events[:], timeout); err == nil {
			d.fresh = n
		}
	}
	d.status.SetAsleep(false)
	d.asleep.Store(false)
	d.woken.Store(false)
}

// lastLook looks for doorbells that rang before the daemon was marked asleep, and ends mutes
// that are over. It returns how long to sleep: zero if there is something to do, and at most
// until the next mute ends.
func (d *Doorbells) lastLook(timeout time.Duration) time.Duration {
	if d.woken.Load() {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var now time.Time
	if d.muted > 0 {
		now = time.Now()
	}
	for _, b := range d.bells {
		if !b.mutedUntil.IsZero() {
			if left := b.mutedUntil.Sub(now); left > 0 {
				timeout = min(timeout, left)
				continue
			}
			d.unmute(b)
		}
		if b.page.ringing() {
			timeout = 0
			d.countRing(b)
		}
	}
	return timeout
}

// count counts the rings that epoll has reported.
func (d *Doorbells) count(events []unix.EpollEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range events {
		id := int64(events[i].Pad)<<32 | int64(uint32(events[i].Fd))
		if id == timerID {
			var ticks [8]byte
			_, _ = unix.Read(d.timer, ticks[:]) // a timer that is not read does not tick again
			continue
		}
		at, ok := slices.BinarySearchFunc(d.bells, id, func(b *bell, id int64) int { return cmp.Compare(b.id, id) })
		if ok {
			d.countRing(d.bells[at])
		}
	}
}

// countRing counts one ring and mutes a bell that rings too often.
func (d *Doorbells) countRing(b *bell) {
	now := time.Now()
	if now.Sub(b.countStart) > ringPeriod {
		b.countStart, b.rings = now, 0
	}
	if b.rings++; b.rings > maxRings && b.mutedUntil.IsZero() {
		d.muted++
		_ = d.control(unix.EPOLL_CTL_MOD, b.page.doorbell, b.id, 0)
		b.mutedUntil = now.Add(muteTime)
	}
}

func (d *Doorbells) unmute(b *bell) {
	b.mutedUntil = time.Time{}
	d.muted--
	_ = d.control(unix.EPOLL_CTL_MOD, b.page.doorbell, b.id, edgeTriggered)
}

// Close releases the set. It must not be called during Wait.
func (d *Doorbells) Close() {
	_, _ = unix.Close(d.timer), unix.Close(d.own)
	_ = unix.Close(d.epoll)
}
