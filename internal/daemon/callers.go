package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/server"
)

// callers keeps the orders of one user from delaying those of others: a user has one order
// under way at a time, so that only that one waits for Daemon.mu, and only so many a
// second. Root is not limited.
type callers struct {
	mu    sync.Mutex
	users map[uint32]*callerState
}

// callerState is what a user's orders have used.
type callerState struct {
	turn    sync.Mutex // held by the order that is under way
	waiting int        // orders under way or waiting for their turn
	buckets [costs]bucket
}

// cost is what an order uses.
type cost uint8

const (
	orders cost = iota // each order: it wakes the loop, and may concern all processes
	scans              // each search of the backends for a process that is not known
	costs
)

// rates are the limits on what the orders of one user cost. An order that exceeds one
// waits, for maxDelay at most.
var rates = [costs]rate{
	orders: {perSecond: server.OrderRate, burst: server.OrderBurst},
	scans:  {perSecond: 2, burst: 10},
}

const maxDelay = 2 * time.Second

type rate struct{ perSecond, burst float64 }

// bucket is a token bucket. Its zero value is full.
type bucket struct {
	used float64 // tokens that are missing, at the time at
	at   time.Time
}

// take takes a token and returns how long to wait until it is there. If that is more than
// maxDelay, it takes none.
func (b *bucket) take(r rate, now time.Time) (wait time.Duration, ok bool) {
	used := max(b.used-now.Sub(b.at).Seconds()*r.perSecond, 0) + 1
	if used > r.burst {
		wait = time.Duration((used - r.burst) / r.perSecond * float64(time.Second))
	}
	if wait > maxDelay {
		return wait, false
	}
	b.used, b.at = used, now
	return wait, true
}

func (b *bucket) full(r rate, now time.Time) bool {
	return b.used <= now.Sub(b.at).Seconds()*r.perSecond
}

// maxIdleCallers is how many users without an order under way are remembered.
const maxIdleCallers = 1024

// enter waits for the caller's turn to give an order. leave ends it.
func (c *callers) enter(by server.Caller) (leave func(), err error) {
	if by.All {
		return func() {}, nil
	}
	c.mu.Lock()
	u := c.user(by.Account)
	u.waiting++
	c.mu.Unlock()
	u.turn.Lock()
	leave = func() {
		u.turn.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		u.waiting--
		c.tidy()
	}
	if err := c.spend(by, orders); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// user returns the state of a user. c.mu is held.
func (c *callers) user(uid uint32) *callerState {
	u := c.users[uid]
	if u == nil {
		if c.users == nil {
			c.users = make(map[uint32]*callerState)
		}
		u = &callerState{}
		c.users[uid] = u
	}
	return u
}

// tidy forgets users whose buckets are full again. c.mu is held.
func (c *callers) tidy() {
	if len(c.users) <= maxIdleCallers {
		return
	}
	now := time.Now()
	for uid, u := range c.users {
		idle := u.waiting == 0
		for i := range u.buckets {
			idle = idle && u.buckets[i].full(rates[i], now)
		}
		if idle {
			delete(c.users, uid)
		}
	}
}

// spend takes a token of the caller and waits until it is there. It fails if that takes too
// long.
func (c *callers) spend(by server.Caller, what cost) error {
	if by.All {
		return nil
	}
	c.mu.Lock()
	wait, ok := c.user(by.Account).buckets[what].take(rates[what], time.Now())
	c.mu.Unlock()
	if !ok {
		orders := "orders"
		if what == scans {
			orders = "orders for processes that the daemon does not know"
		}
		return server.TooMany("too many %s: user %d may give %v a second; try again in %v", orders, by.Account, rates[what].perSecond, wait.Round(time.Second))
	}
	time.Sleep(wait)
	return nil
}
