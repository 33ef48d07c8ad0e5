package shim_test

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// ordersLeaseAt is the offset of orders_lease_ns in struct gw_page.
const ordersLeaseAt = 2064

// order is something that the daemon orders a process to do, and how to see whether it does.
type order struct {
	name    string
	prepare func(*shimpage.Page)
	program []string
	follows func(*shimpage.Page) bool // watches for a while
}

// mostInFlight watches how many commands are in flight.
func mostInFlight(p *shimpage.Page) (most uint64) {
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		c := p.Counters()
		most = max(most, c.Launched-min(c.Completed, c.Launched))
	}
	return most
}

// grows watches whether a counter grows.
func grows(count func(shimpage.Counters) uint64) func(*shimpage.Page) bool {
	return func(p *shimpage.Page) bool {
		from := count(p.Counters())
		for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if count(p.Counters()) > from {
				return true
			}
		}
		return false
	}
}

var orders = []order{
	{"bound", bound(2, 1), []string{"lifetime", "bursts"}, func(p *shimpage.Page) bool { return mostInFlight(p) <= 4 }},
	{"stream classes", streamClasses, []string{"lifetime", "classes"}, grows(func(c shimpage.Counters) uint64 { return c.ClassHolds })},
	{
		"late entry", lateEntry(shimpage.LateOn),
		[]string{"work", "12080", "alike", "1000000", "10000"},
		grows(func(c shimpage.Counters) uint64 { return c.LateRequests }),
	},
	{
		"parking", func(p *shimpage.Page) { p.SetParking(20*time.Millisecond, 50*time.Millisecond) },
		[]string{"parkwork", "told", "1000000", "4"},
		grows(func(c shimpage.Counters) uint64 { return c.Parked }),
	},
}

// TestOrdersLease: a process follows the daemon's orders only while the daemon renews their lease.
func TestOrdersLease(t *testing.T) {
	b := buildHarm(t)
	b.compile("lifetime", "test/lifetime.c", "-l:libcuda.so.1")
	b.compile("parkwork", "test/parkwork.c")
	b.compile("work", "test/cudawork.c")
	for _, o := range orders {
		t.Run(o.name, func(t *testing.T) {
			t.Run("daemon hangs", func(t *testing.T) { testOrderHangs(t, b.dir, o) })
			t.Run("hostile lease", func(t *testing.T) { testOrderHostile(t, b.dir, o) })
			t.Run("page without a lease", func(t *testing.T) { testOrderWithoutLease(t, b.dir, o) })
		})
	}
}

// testOrderHangs: the effect of an order ends within a lease of the hang, and comes back with the daemon.
func testOrderHangs(t *testing.T, dir string, o order) {
	d := newDaemon(t, o.prepare)
	start(t, d.Socket(), dir, o.program...)
	page := d.Page()
	eventually(t, "the process follows the order", func() bool { return o.follows(page) })
	d.HangWhile(func() {
		time.Sleep(lease + 50*time.Millisecond)
		if o.follows(page) {
			t.Error("the process follows the order of a daemon that hangs")
		}
	})
	eventually(t, "the process follows the order again", func() bool { return o.follows(page) })
}

// testOrderHostile: a lease of zero and one that ends too late count as expired.
func testOrderHostile(t *testing.T, dir string, o order) {
	d := newDaemon(t, o.prepare)
	start(t, d.Socket(), dir, o.program...)
	page := d.Page()
	eventually(t, "the process follows the order", func() bool { return o.follows(page) })
	d.HangWhile(func() {
		for _, lease := range []uint64{0, pageabi.Now() + uint64(time.Hour), ^uint64(0)} {
			write(t, page, ordersLeaseAt, binary.NativeEndian.AppendUint64(nil, lease))
			time.Sleep(300 * time.Millisecond) // what is in progress
			if o.follows(page) {
				t.Errorf("the process follows the order with a lease of %d", lease)
			}
		}
	})
}

// testOrderWithoutLease: on a page of version 2 orders hold without a lease.
func testOrderWithoutLease(t *testing.T, dir string, o order) {
	d := newDaemon(t, o.prepare)
	d.Speak(pageabi.Versions{Lowest: 1, Highest: 2})
	start(t, d.Socket(), dir, o.program...)
	page := d.Page()
	if v := pagetest.PageVersion(t, page); v != 2 {
		t.Fatalf("the page has version %d, want 2", v)
	}
	d.HangWhile(func() {
		time.Sleep(lease + 50*time.Millisecond)
		eventually(t, "the process follows the order", func() bool { return o.follows(page) })
	})
}

// write writes bytes to a page, as a daemon with an error might.
func write(t *testing.T, p *shimpage.Page, at int64, bytes []byte) {
	t.Helper()
	fd, doorbell, err := p.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	defer syscall.Close(doorbell)
	if _, err := syscall.Pwrite(fd, bytes, at); err != nil {
		t.Fatal(err)
	}
}
