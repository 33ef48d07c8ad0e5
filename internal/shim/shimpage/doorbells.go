package shimpage

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A page that rings more often than so in such a time is not listened to for a
// while: whoever waits in Wait looks at it when it wakes for other reasons.
const (
	mostRings = 1000
	ringTime  = 100 * time.Millisecond
	deafTime  = 10 * time.Millisecond
)

// Doorbells sleeps until a page rings, or somebody of our own does.
//
// A program rings with one system call if the board says that we sleep, and with
// none if it does not. So the board says so before the last look at all bells: a
// program that did not see it yet is seen by that look.
type Doorbells struct {
	board *StatusPage
	epoll int
	own   int
	timer int         // that rings at each beat
	news  atomic.Bool // somebody of our own rang
	sleep atomic.Bool

	mu      sync.Mutex
	ringers []*ringer
	lastID  int64
	deaf    int // ringers that are not listened to

	events [64]unix.EpollEvent // Wait's
	rang   int                 // of those, not counted yet
}

type ringer struct {
	id    int64
	page  *Page
	rings int
	since time.Time // of rings
	deaf  time.Time // until when; zero: it is listened to
}

// beat is the longest that an ear sleeps, whatever it is told. A timer that runs on
// costs less than one that is set and taken back for each sleep: on a virtual machine
// each of those is a trap.
const beat = 100 * time.Millisecond

// timerID is what the timer rings by; our own bell is 0, and pages count from 1.
const timerID = -1

// NewDoorbells returns an ear that nobody can reach yet.
func NewDoorbells(b *StatusPage) (*Doorbells, error) {
	e := &Doorbells{board: b, own: -1, timer: -1}
	var err error
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if e.own, err = newBell(); err == nil {
		err = e.control(unix.EPOLL_CTL_ADD, e.own, 0, listening)
	}
	if err == nil {
		e.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		each := unix.NsecToTimespec(int64(beat))
		err = unix.TimerfdSettime(e.timer, 0, &unix.ItimerSpec{Interval: each, Value: each}, nil)
	}
	if err == nil {
		err = e.control(unix.EPOLL_CTL_ADD, e.timer, timerID, listening)
	}
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("make an ear: %w", err)
	}
	return e, nil
}

// listening is to hear each ring once, without having to read the bell.
const listening = unix.EPOLLIN | unix.EPOLLET

func (e *Doorbells) control(op int, bell int, id int64, events uint32) error {
	err := unix.EpollCtl(e.epoll, op, bell, &unix.EpollEvent{Events: events, Fd: int32(id), Pad: int32(id >> 32)})
	if err != nil {
		return fmt.Errorf("listen to a bell: %w", err)
	}
	return nil
}

// Add listens to a page.
func (e *Doorbells) Add(p *Page) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastID++
	if err := e.control(unix.EPOLL_CTL_ADD, p.bell, e.lastID, listening); err != nil {
		return err
	}
	e.ringers = append(e.ringers, &ringer{id: e.lastID, page: p})
	return nil
}

// Remove stops listening to a page, which must be done before it is closed. Twice
// equals once.
func (e *Doorbells) Remove(p *Page) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.ringers, func(r *ringer) bool { return r.page == p })
	if i < 0 {
		return
	}
	if !e.ringers[i].deaf.IsZero() {
		e.deaf--
	}
	_ = e.control(unix.EPOLL_CTL_DEL, p.bell, 0, 0)
	e.ringers = slices.Delete(e.ringers, i, i+1)
}

// Wake has Wait return, the one under way or the next.
func (e *Doorbells) Wake() {
	e.news.Store(true)
	if e.sleep.Load() {
		_, _ = unix.Write(e.own, one[:]) // it fails only when it has rung as often as it can
	}
}

// one is what an eventfd is to be written: the number, in the machine's order.
var one = func() (b [8]byte) { binary.NativeEndian.PutUint64(b[:], 1); return b }()

// Wait returns when somebody has rung, and after d or a beat at the latest. One goroutine may
// wait, best one that has a thread of its own.
func (e *Doorbells) Wait(d time.Duration) {
	e.hear(e.events[:e.rang]) // not on the way to what they rang for
	e.rang = 0
	e.sleep.Store(true)
	e.board.SetAsleep(true)
	if d = e.lastLook(d); d > 0 {
		if d >= beat {
			d = forever
		}
		if n, err := epollWait(e.epoll, e.events[:], d); err == nil {
			e.rang = n
		}
	}
	e.board.SetAsleep(false)
	e.sleep.Store(false)
	e.news.Store(false)
}

// lastLook finds bells that rang while nobody slept. It returns how long to sleep:
// d, until somebody is to be listened to again, or not at all.
func (e *Doorbells) lastLook(d time.Duration) time.Duration {
	if e.news.Load() {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var now time.Time
	if e.deaf > 0 {
		now = time.Now()
	}
	for _, r := range e.ringers {
		if !r.deaf.IsZero() {
			if left := r.deaf.Sub(now); left > 0 {
				d = min(d, left)
				continue
			}
			e.listen(r, true)
		}
		if r.page.ringing() {
			d = 0
			e.count(r)
		}
	}
	return d
}

// hear counts who rang.
func (e *Doorbells) hear(events []unix.EpollEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range events {
		id := int64(events[i].Pad)<<32 | int64(uint32(events[i].Fd))
		if id == timerID {
			var ticks [8]byte
			_, _ = unix.Read(e.timer, ticks[:]) // or it does not go on
			continue
		}
		at, ok := slices.BinarySearchFunc(e.ringers, id, func(r *ringer, id int64) int { return cmp.Compare(r.id, id) })
		if ok {
			e.count(e.ringers[at])
		}
	}
}

// count is for one ring. Who rings all the time is not heard any more.
func (e *Doorbells) count(r *ringer) {
	now := time.Now()
	if now.Sub(r.since) > ringTime {
		r.since, r.rings = now, 0
	}
	if r.rings++; r.rings > mostRings && r.deaf.IsZero() {
		e.listen(r, false)
		r.deaf = now.Add(deafTime)
	}
}

func (e *Doorbells) listen(r *ringer, yes bool) {
	if yes {
		r.deaf = time.Time{}
		e.deaf--
		_ = e.control(unix.EPOLL_CTL_MOD, r.page.bell, r.id, listening)
		return
	}
	e.deaf++
	_ = e.control(unix.EPOLL_CTL_MOD, r.page.bell, r.id, 0)
}

// Close is for when nobody waits any more.
func (e *Doorbells) Close() {
	_, _ = unix.Close(e.timer), unix.Close(e.own)
	_ = unix.Close(e.epoll)
}
