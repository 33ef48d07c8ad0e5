package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// Weights promise processes of one class parts of the device time that the class has. A
// process that wants less than its part leaves the rest to the others, in proportion to their
// weights (weighted max-min fairness). What a process wants is the time in which it had work. So
// a process is given less than it is promised only if it waited while others had more than
// their part.
//
// The account is made for each second in which two or more processes of the class had work at
// the same time. All of them together are promised what they are given.

// share is what a client had of the device in the present second.
type share struct{ had, wanted time.Duration }

// sharingClasses are the classes whose weights promise something.
var sharingClasses = [...]sched.Class{sched.Batch, sched.Idle}

// endSecond accounts for what the clients were promised and given in a second.
func (a *Accounts) endSecond(d *deviceAccount) {
	for _, class := range sharingClasses {
		if d.contended[class] {
			a.promise(d, class)
		}
	}
	for _, c := range d.clients {
		c.share = share{}
	}
	d.contended = [4]bool{}
}

// promise divides the device time of a class among its clients.
func (a *Accounts) promise(d *deviceAccount, class sched.Class) {
	a.sharers = a.sharers[:0]
	left, weights := 0.0, 0.0
	for _, c := range d.clients {
		if c.class == class && (c.share.had > 0 || c.share.wanted > 0) {
			c.share.wanted = max(c.share.wanted, c.share.had)
			left += float64(c.share.had)
			weights += c.weight
			a.sharers = append(a.sharers, c)
		}
	}
	// Those that want the least by their weight are satisfied first.
	slices.SortFunc(a.sharers, func(x, y *client) int {
		return cmp.Compare(float64(x.share.wanted)*y.weight, float64(y.share.wanted)*x.weight)
	})
	for _, c := range a.sharers {
		part := min(left*c.weight/weights, float64(c.share.wanted))
		left -= part
		weights -= c.weight
		c.use.Promised += time.Duration(part)
		c.use.Given += c.share.had
	}
}
