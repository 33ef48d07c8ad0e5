package shim_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

func lateEntry(setting shimpage.LateEntry) func(*shimpage.Page) {
	return func(p *shimpage.Page) { p.SetLateEntry(setting) }
}

// testLate runs programs whose requests enter late. The fake device stops at each wait until it is
// released, for ever if need be.
func testLate(t *testing.T, dir string) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"order", testLateOrder},
		{"programs", testLatePrograms},
		{"changes", testLateChanges},
		{"learned", testLateLearned},
		{"after copies", testLateAfterCopies},
		{"in the middle of a request", testLateBusy},
		{"timer thread", testLateTimer},
		{"daemon killed", testLateDaemonKilled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, dir) })
	}
}

// runLate runs a program with late entry on, compares its result with that without the shim, and
// returns the counters.
func runLate(t *testing.T, dir string, args ...string) shimpage.Counters {
	t.Helper()
	native := start(t, noShim, dir, args...).expectOK()
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, args...)
	page := d.Page()
	line := p.expectOK()
	if checksum(line) != checksum(native) {
		t.Errorf("%v: got %s, without the shim %s", args, line, native)
	}
	c := page.Counters()
	// The last request may not have ended. If several threads launch, a wait may be put for one that
	// has ended already.
	stops := field(t, line, "stops")
	if c.LateRequests > stops || c.LateRequests+1 < stops && !slices.Contains(args, "crowd") {
		t.Errorf("%v: %d requests are said to have entered late, but streams were stopped %d times", args, c.LateRequests, stops)
	}
	// If another thread launches, it may put a wait after this one has released all.
	if blocked := field(t, line, "blocked"); blocked > 0 && !slices.Contains(args, "crowd") && !slices.Contains(args, "capture") {
		t.Errorf("%v: %d calls waited for a stream that was stopped, want 0: they release first", args, blocked)
	}
	return c
}

// testLateOrder: a program gets the same results if its requests enter late, however it finds the
// driver.
func testLateOrder(t *testing.T, dir string) {
	for _, lookup := range lookups {
		if c := runLate(t, dir, append(slices.Clone(lookup), "order", "3")...); c.LateRequests < 5 || c.LateFor == 0 {
			t.Errorf("%s: got %+v, want at least 5 requests that entered late", lookup[1], c)
		}
	}
}

// testLatePrograms: neither several threads, streams and contexts nor captures, forks, kernels that
// wait for later launches or any way to wait make a program hang or change its results.
func testLatePrograms(t *testing.T, dir string) {
	for _, c := range []struct {
		args  []string
		least uint64 // requests that enter late
	}{
		{[]string{"requests", "100", "50000"}, 50},
		{[]string{"requests", "40", "0"}, 20},
		{[]string{"joined", "30"}, 20},
		{[]string{"others"}, 2},
		{[]string{"kernels"}, 3},
		{[]string{"crowd", "4"}, 3},
		{[]string{"capture", "10"}, 0},
		{[]string{"contexts", "5"}, 5},
		{[]string{"waits", "40"}, 1},
		{[]string{"fork"}, 0},
		{[]string{"ends"}, 1},
		{[]string{"pinned", "70"}, 50},
		{[]string{"burst", "3000"}, 0}, // more launches than the device's queue takes
	} {
		for _, lookup := range []string{"12080", "13020p"} {
			got := runLate(t, dir, append([]string{"work", lookup}, c.args...)...)
			if got.LateRequests < c.least {
				t.Errorf("%s %v: %d requests entered late, want at least %d", lookup, c.args, got.LateRequests, c.least)
			}
		}
	}
}

// testLateChanges: late entry is switched on and off and the gate closed at random moments.
func testLateChanges(t *testing.T, dir string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	args := []string{"work", "12080", "requests", "60", "100000"}
	native := start(t, noShim, dir, args...).expectOK()
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, args...)
	page := d.Page()
	ended := make(chan string, 1)
	go func() { ended <- p.expectOK() }()
	for {
		select {
		case line := <-ended:
			if checksum(line) != checksum(native) {
				t.Errorf("got %s, without the shim %s", line, native)
			}
			return
		case <-time.After(time.Duration(r.Int64N(int64(3 * time.Millisecond)))):
		}
		changeAtRandom(page, r)
	}
}

// testLateLearned: without being told to, alike requests enter late after a while, and those of a
// program without a daemon's order never do.
func testLateLearned(t *testing.T, dir string) {
	for _, setting := range []shimpage.LateEntry{shimpage.LateOff, shimpage.LateAuto} {
		d := newDaemon(t, lateEntry(setting))
		p := start(t, d.Socket(), dir, "work", "12080", "alike", "100000", "200000")
		page := d.Page()
		if setting == shimpage.LateOff {
			p.waitFor("at 39")
			if c := page.Counters(); c.LateRequests != 0 || c.LateFor != 0 {
				t.Errorf("got %+v, want no late requests", c)
			}
			continue
		}
		eventually(t, "requests enter late", func() bool { return page.Counters().LateRequests >= 10 })
		if c := page.Counters(); c.LateFor < 10*500*time.Microsecond {
			t.Errorf("got %+v, want requests that enter late by 500 us at least", c)
		}
		pairs := func() (n uint64) {
			all := page.LatePairs()
			for _, b := range all.Bins() {
				n += b.Count
			}
			return n
		}
		eventually(t, "pairs of requests are published", func() bool { return pairs() >= 6 })
		if late := page.Counters().LateRequests; pairs() > late+1 {
			t.Errorf("%d pairs with a request that entered late, but only %d such requests", pairs(), late)
		}
	}
}

// testLateAfterCopies: copies that were done before a request, however many, are no part of it.
func testLateAfterCopies(t *testing.T, dir string) {
	d := newDaemon(t, lateEntry(shimpage.LateAuto))
	start(t, d.Socket(), dir, "work", "12080", "copied", "100000", "200000")
	page := d.Page()
	eventually(t, "requests enter late", func() bool { return page.Counters().LateRequests >= 10 })
}

// testLateBusy: late entry that is switched on while commands are in flight begins with the next
// request, not in the middle of this one.
func testLateBusy(t *testing.T, dir string) {
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, "work", "12080", "busy", "20")
	page := d.Page()
	before := field(t, p.waitFor("idle"), "stops")
	page.SetLateEntry(shimpage.LateOff)
	p.send("go on")
	p.waitFor("busy")
	page.SetLateEntry(shimpage.LateOn)
	p.send("go on")
	after := field(t, p.waitFor("done"), "stops")
	p.send("go on")
	p.expectOK()
	if before == 0 || after != before {
		t.Errorf("streams were stopped %d times at first and %d times while the process was ready, want some and 0", before, after-before)
	}
}

// testLateTimer: the timer thread inherits neither a real-time policy nor the only CPU of the
// thread that happens to create it, and takes none of the program's signals. Requests of a thread
// with a real-time policy do not enter late.
func testLateTimer(t *testing.T, dir string) {
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, "work", "12080", "realtime")
	program := p.waitFor("program ")
	timer := p.waitFor("timer ")
	end := p.expectOK()
	if field(t, program, "policy") == 0 {
		t.Log("no right to use SCHED_FIFO: the policy is not tested")
	} else if stops := field(t, end, "stops"); stops != 0 {
		t.Errorf("%d requests of a thread with a real-time policy entered late, want 0: it may keep the timer thread from its CPU", stops)
	}
	if got := field(t, timer, "policy"); got != 0 {
		t.Errorf("policy %d, want 0: SCHED_OTHER", got)
	}
	if got, want := field(t, timer, "cpus"), field(t, program, "cpus"); got != want {
		t.Errorf("%d CPUs, want %d as the main thread", got, want)
	}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGALRM, syscall.SIGPROF, syscall.SIGCHLD, syscall.SIGUSR1} {
		if field(t, timer, "blocked")>>(s-1)&1 == 0 {
			t.Errorf("%v is not blocked", s)
		}
	}
}

// progress waits until the program has made some more requests.
func progress(t *testing.T, p *process) {
	t.Helper()
	at := func() int {
		n, err := strconv.Atoi(strings.TrimPrefix(p.waitFor("at "), "at "))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for from := at(); at() < from+20; {
	}
}

// testLateDaemonKilled: the daemon dies at random moments while waits are pending. The program goes
// on, and enters late again under the next daemon.
func testLateDaemonKilled(t *testing.T, dir string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var p *process
	socket := ""
	for round := range 6 {
		d := newDaemon(t, lateEntry(shimpage.LateOn))
		if p == nil {
			socket = d.Socket()
			p = start(t, socket, dir, "work", "12080", "alike", "1000000", fmt.Sprint(50000+r.Int64N(200000)))
		} else if err := os.Rename(d.Socket(), socket); err != nil {
			t.Fatal(err)
		}
		page := d.Page()
		before := page.Counters().LateRequests
		eventually(t, "requests enter late", func() bool { return page.Counters().LateRequests > before+2 })
		time.Sleep(time.Duration(r.Int64N(int64(5 * time.Millisecond))))
		d.Die()
		progress(t, p)
		t.Logf("round %d: %+v", round, page.Counters())
	}
}
