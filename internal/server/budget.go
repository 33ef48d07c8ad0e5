package server

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Each account has a bucket of tokens for its requests, so that one user cannot keep the
// daemon busy. Callers that may do everything have no limit.
const (
	budgetRate  = 1000.0 // tokens per second
	budgetBurst = 2000.0
	budgetWait  = time.Second // a request that would wait longer is refused
	connectCost = 2.0         // of a connection, before its first request
	// tokenBytes is how many bytes of a reply cost a token, beside the cost of its operation. The daemon
	// describes and encodes 1000 processes, which have about 450,000 bytes, in 18 ms. So the tokens of a
	// second are for about 80 ms.
	tokenBytes = 2048.0
	maxBuckets = 4096
)

// bucket is the tokens of an account at a time. It may be negative: then requests wait.
type bucket struct {
	tokens float64
	at     time.Time
}

// fill adds the tokens of the time that has passed.
func (b *bucket) fill(now time.Time, rate, burst float64) {
	b.tokens = min(burst, b.tokens+rate*now.Sub(b.at).Seconds())
	b.at = now
}

// buckets is one bucket for each account.
type buckets struct {
	mu          sync.Mutex
	of          map[uint32]*bucket
	rate, burst float64
}

func newBuckets(rate, burst float64) *buckets {
	return &buckets{of: map[uint32]*bucket{}, rate: rate, burst: burst}
}

// spend takes tokens of an account, unless more than debt would then be missing. It
// returns how long the account has to wait until none are missing.
func (b *buckets) spend(account uint32, cost, debt float64, now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.of[account]
	if t == nil {
		b.forget(now)
		t = &bucket{tokens: b.burst, at: now}
		b.of[account] = t
	}
	t.fill(now, b.rate, b.burst)
	if t.tokens-cost < -debt {
		return 0, false
	}
	t.tokens -= cost
	return max(0, time.Duration(-t.tokens/b.rate*float64(time.Second))), true
}

// correct takes more tokens of an account for what it has got, or gives some back. What is missing then,
// the next requests wait for.
func (b *buckets) correct(account uint32, cost float64, now time.Time) {
	_, _ = b.spend(account, cost, math.Inf(1), now)
}

// forget drops full buckets if there are many: a new one is full as well.
func (b *buckets) forget(now time.Time) {
	if len(b.of) < maxBuckets {
		return
	}
	for account, t := range b.of {
		if t.fill(now, b.rate, b.burst); t.tokens >= b.burst {
			delete(b.of, account)
		}
	}
}

// take takes tokens of a caller and waits until they are there, or ctx is done.
func (b *buckets) take(ctx context.Context, c caller, cost float64) error {
	if c.all || c.agent {
		return nil
	}
	wait, ok := b.spend(c.account, cost, b.rate*budgetWait.Seconds(), time.Now())
	if !ok {
		return TooMany("user %d makes too many requests; wait a second", c.account)
	}
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// replyBytes are the bytes of the last reply to each operation that a caller with a limit got. The next
// request for it takes tokens for as many before it is carried out, so that an account cannot have
// many long replies made at the same time with the tokens of one.
type replyBytes [lastOperation + 1]atomic.Int64

// take takes the tokens of a caller for a request, and waits until they are there. paid is what it has
// taken: never so much that an account without debts would be refused.
func (s *Server) take(by caller, op operation) (paid float64, err error) {
	paid = operations[op].cost + min(float64(s.replies[op].Load())/tokenBytes, budgetRate*budgetWait.Seconds())
	return paid, s.budgets.take(context.Background(), by, paid)
}

// settle takes the tokens that a reply costs beyond those that were paid, or gives back the rest.
func (s *Server) settle(by caller, op operation, paid float64, a reply) {
	if by.all || by.agent || a.held {
		return
	}
	s.replies[op].Store(int64(len(a.body)))
	s.budgets.correct(by.account, operations[op].cost+float64(len(a.body))/tokenBytes-paid, time.Now())
}
