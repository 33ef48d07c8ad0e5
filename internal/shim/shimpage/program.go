package shimpage

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Program is the other side of a page: what shim/gate.c does in C, without the
// device. A test's double of a program, and no more polite than it is asked to be.
type Program struct {
	mu     sync.Mutex
	mem    memory
	page   *page
	notice memory
	board  *board
	bell   int
}

// Enter maps what a daemon has sent. The descriptors are the Program's from then on.
func Enter(page, board, bell int) (*Program, error) {
	p := &Program{mem: memory{fd: page}, notice: memory{fd: board}, bell: bell}
	var err error
	if p.mem.bytes, err = unix.Mmap(page, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), p.Leave())
	}
	if p.notice.bytes, err = unix.Mmap(board, 0, boardSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), p.Leave())
	}
	p.page, p.board = p.mem.page(), p.notice.board()
	if p.page.magic.Load() != magic || p.board.magic.Load() != magic || p.page.abi.Load() != abi {
		return nil, errors.Join(fmt.Errorf("no page of version %d", abi), p.Leave())
	}
	return p, nil
}

// Leave unmaps everything. Nobody may be in a call of p's.
func (p *Program) Leave() error {
	return errors.Join(p.mem.close(), p.notice.close(), unix.Close(p.bell))
}

// Pass waits at the gate as a launch does, and counts the launch. It reports
// whether it had to wait.
func (p *Program) Pass() (waited bool) {
	for p.gateShut() {
		if !waited {
			waited = true
			p.page.holds.Add(1)
			p.page.flags.Or(Held)
			p.Ring(WatchReady)
		}
		time.Sleep(50 * time.Microsecond) // a futex in the shim
	}
	p.page.flags.And(^uint32(Held))
	p.Launched(1)
	return waited
}

func (p *Program) gateShut() bool {
	if p.page.gate.Load() != gateClosed {
		return false
	}
	until := p.page.lease.Load()
	return until > now() && until-now() <= leaseMost
}

// InFlight is how many commands are launched and not known to be done, and the
// bound on them.
func (p *Program) InFlight() (n uint64, bound, batch uint32) {
	return p.page.launched.Load() - p.page.completed.Load(), p.page.bound.Load(), p.page.batch.Load()
}

// Told is when the owner expects the next work of the program, and whether he says that
// what it launches may be run twice.
func (p *Program) Told() (at uint64, idempotent uint32) {
	return p.page.expect.Load(), p.page.idempotent.Load()
}

// Launched counts commands put on the device.
func (p *Program) Launched(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.page.launched.Load() == p.page.completed.Load()
	p.page.launched.Add(n)
	if idle {
		p.page.flags.Or(Ready)
		p.Ring(WatchReady)
	}
}

// Completed counts commands that are done.
func (p *Program) Completed(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.page.completed.Add(n)
	if p.page.launched.Load() == p.page.completed.Load() {
		p.page.flags.And(^uint32(Ready))
		p.Ring(WatchReady)
	}
}

// Hint gives a hint and rings.
func (p *Program) Hint(kind HintKind, value int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.page.hints.Load()
	e := &p.page.ring[n%maxHints]
	e.seq.Store(0)
	e.kind.Store(uint32(kind))
	e.value.Store(value)
	e.at.Store(now())
	e.seq.Store(uint32(n + 1))
	p.page.hints.Store(n + 1)
	p.ring()
}

// Begin opens a request; the function that it returns ends it.
func (p *Program) Begin() (end func()) {
	begin := now()
	p.page.open.Add(1)
	p.Ring(WatchRequests)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := p.page.requests.Load()
		e := &p.page.log[n%maxRequests]
		e.begin.Store(begin)
		e.end.Store(now())
		p.page.requests.Store(n + 1)
		p.page.open.Add(^uint32(0))
		p.Ring(WatchRequests)
	}
}

// Ring rings if the daemon wants to be woken for that.
func (p *Program) Ring(what uint32) {
	if p.page.watch.Load()&what != 0 {
		p.ring()
	}
}

func (p *Program) ring() {
	p.page.bell.Add(1)
	if p.board.asleep.Load() != 0 {
		_, _ = unix.Write(p.bell, one[:])
	}
}

// InUse says which runtimes the program uses.
func (p *Program) InUse(runtimes uint32) { p.page.runtimes.Store(runtimes) }

// Watched is what the daemon wants to be woken for.
func (p *Program) Watched() uint32 { return p.page.watch.Load() }

// Scribble writes over the whole page, as a program that has gone wrong does.
func (p *Program) Scribble(next func() byte) {
	for i := range p.mem.bytes {
		p.mem.bytes[i] = next()
	}
	p.ring()
}

// Owns says how many compute queues it has on an AMD GPU, at a place of its choice.
func (p *Program) Owns(place int, gpu, queues uint32) {
	p.page.gpus[place].queues.Store(queues)
	p.page.gpus[place].gpu.Store(gpu)
	p.ring()
}

// Did says how many of those are off, and of how many the driver would not have it.
func (p *Program) Did(place int, off, failed uint32) {
	p.page.gpus[place].off.Store(off)
	p.page.gpus[place].failed.Store(failed)
}

// Wish is what the daemon wants of the program's own queues now.
type Wish struct {
	Off      []uint32
	Priority uint32 // and one more; 0: none
	Turn     uint32
}

// Wished reads it.
func (p *Program) Wished() (w Wish) {
	w.Turn = p.page.queueTurn.Load() // before what it is about
	if until := p.page.queueLease.Load(); until <= now() || until-now() > leaseMost {
		return w
	}
	for i := range p.page.off {
		if gpu := p.page.off[i].Load(); gpu != 0 {
			w.Off = append(w.Off, gpu)
		}
	}
	w.Priority = p.page.queuePriority.Load()
	return w
}

// Obey says that it is done.
func (p *Program) Obey(turn uint32) { p.page.queueObeyed.Store(turn) }
