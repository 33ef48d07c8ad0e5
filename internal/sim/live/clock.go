package live

import (
	"cmp"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/sched"
)

// clock maps real time to the Node's time.
type clock struct {
	speed  float64
	began  time.Time     // the real time at which the Node's clock was zero
	maxLag time.Duration // zero means defaultMaxLag
	behind time.Duration // real time dropped because the machine was too slow
}

// defaultMaxLag is how much real time the simulation may catch up with. If it falls further
// behind, because the machine is too slow or was suspended, its clock is delayed instead.
const defaultMaxLag = 100 * time.Millisecond

// real returns the real duration of a simulated one.
func (c *clock) real(d time.Duration) time.Duration {
	if d > 0 {
		return max(time.Duration(float64(d)/c.speed), 1)
	}
	return 0
}

// simulated returns the simulated duration of a real one.
func (c *clock) simulated(d time.Duration) time.Duration {
	if d > 0 {
		return max(time.Duration(float64(d)*c.speed), 1)
	}
	return 0
}

// now returns what the Node's clock should show, given what it shows.
func (c *clock) now(shown sched.Time) sched.Time {
	t := sched.Time(c.simulated(time.Since(c.began)))
	maxLag := cmp.Or(c.maxLag, defaultMaxLag)
	if lag := c.real(t.Sub(shown)); lag > maxLag {
		c.began = c.began.Add(lag - maxLag)
		c.behind += lag - maxLag
		return shown.Add(c.simulated(maxLag))
	}
	return t
}

// until returns how long it is until the Node's clock should show t.
func (c *clock) until(t sched.Time) time.Duration {
	return time.Until(c.began.Add(c.real(time.Duration(t))))
}

// sleep sleeps for d in the kernel: time.Sleep would be up to 1 ms late in a process that
// is otherwise idle.
func sleep(d time.Duration) {
	left := unix.NsecToTimespec(int64(d))
	for errors.Is(unix.Nanosleep(&left, &left), unix.EINTR) { //nolint:revive // the call itself counts down left
	}
}

// tooSlow returns how much real time was dropped, and whether that is more than a tenth
// of the time since the start. A short stall of the machine is less.
func (c *clock) tooSlow(now time.Time) (behind time.Duration, slow bool) {
	started := c.began.Add(-c.behind)
	return c.behind, c.behind > max(now.Sub(started)/10, 100*time.Millisecond)
}
