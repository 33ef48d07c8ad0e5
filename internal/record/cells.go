package record

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

const (
	// maxHolders is how many holders are listed for a process on a device, besides context
	// switches, idle time and others.
	maxHolders = 12
	// bucketLength and buckets make the windows of the delays.
	bucketLength = time.Second
	buckets      = 60
)

// cell is how long one holder has delayed a process.
type cell struct {
	holder    int32 // pid, or one of heldBySwitch, ...
	estimated bool
	total     time.Duration
	current   time.Duration          // in the bucket that is not over
	last      [buckets]time.Duration // in the buckets before, by their number
}

// row has the cells of a process on a device.
type row struct{ cells []cell }

// add adds a delay. If there are too many holders, the one with the least time joins others,
// so the sum of all cells is always the time that the process has waited.
func (r *row) add(holder int32, d time.Duration, estimated bool) {
	if d <= 0 {
		return
	}
	c := r.cell(holder)
	c.total += d
	c.current += d
	c.estimated = c.estimated || estimated
}

func (r *row) cell(holder int32) *cell {
	for i := range r.cells {
		if r.cells[i].holder == holder {
			return &r.cells[i]
		}
	}
	if holder >= 0 && r.listed() >= maxHolders {
		r.fold()
	}
	r.cells = append(r.cells, cell{holder: holder})
	return &r.cells[len(r.cells)-1]
}

// listed returns how many processes have a cell.
func (r *row) listed() (n int) {
	for i := range r.cells {
		if r.cells[i].holder >= 0 {
			n++
		}
	}
	return n
}

// fold moves the holder with the least recent time to others.
func (r *row) fold() {
	least := -1
	for i := range r.cells {
		if r.cells[i].holder >= 0 && (least < 0 || r.cells[i].recent() < r.cells[least].recent()) {
			least = i
		}
	}
	from := r.cells[least]
	r.cells = slices.Delete(r.cells, least, least+1)
	to := r.cell(heldByOthers)
	to.total += from.total
	to.current += from.current
	to.estimated = to.estimated || from.estimated
	for i := range to.last {
		to.last[i] += from.last[i]
	}
}

// recent returns the time by which holders are compared: of the last minute, and if that is
// equal of all time, with little weight.
func (c *cell) recent() time.Duration {
	sum := c.current + c.total/1000
	for _, d := range c.last {
		sum += d
	}
	return sum
}

// window returns the time in the last n seconds before a time, which is in the bucket that is
// not over. Of the first bucket it takes the part that is within.
func (c *cell) window(to sched.Time, n int) time.Duration {
	number := int(bucketAt(to) % buckets)
	before := func(i int) time.Duration { return c.last[(number+buckets-i)%buckets] }
	sum := c.current
	for i := 1; i < n; i++ {
		sum += before(i)
	}
	within := bucketLength - time.Duration(to)%bucketLength
	return sum + time.Duration(float64(before(n))*(float64(within)/float64(bucketLength)))
}

// turnBucket ends the bucket with a number.
func (r *row) turnBucket(number uint64) {
	for i := range r.cells {
		c := &r.cells[i]
		c.last[number%buckets] = c.current
		c.current = 0
	}
}

// bucketAt returns the number of the bucket at a time.
func bucketAt(t sched.Time) uint64 { return uint64(t) / uint64(bucketLength) }
