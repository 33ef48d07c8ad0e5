package shim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// expectCounts checks the counters at a line that the process has printed, and lets it go on.
func expectCounts(p *process, page *shimpage.Page, line string, launched, done uint64) {
	p.t.Helper()
	p.waitFor(line)
	c := page.Counters()
	if ready := c.Flags&shimpage.Ready != 0; c.Launched != launched || c.Completed != done || ready != (done < launched) {
		p.t.Errorf("%s: %d launched, %d done, flags %b; want %d and %d", line, c.Launched, c.Completed, c.Flags, launched, done)
	}
	p.send("")
}

// TestLifetimes runs programs whose streams, contexts, threads and captures end at unusual moments.
func TestLifetimes(t *testing.T) {
	b := buildHarm(t)
	b.compile("lifetime", "test/lifetime.c", "-l:libcuda.so.1")
	b.compile("libearly.so", "test/early.c", "-fPIC", "-shared", "-l:libcuda.so.1")
	b.compile("early", "test/lifetime.c", "-Wl,--no-as-needed", "-learly", "-l:libcuda.so.1")
	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"expired lease with stream classes", testExpiredLeaseWithClasses},
		{"launch in a constructor", testEarlyLaunch},
		{"stream per kernel", testStreamPerKernel},
		{"destroyed stream", testDestroyedStream},
		{"old event", testOldEvent},
		{"queries", testQueriesDoNotSleep},
		{"handle reused", testHandleReused},
		{"captured context", testCapturedContext},
		{"joined stream", testJoinedStream},
		{"unseen capture", testUnseenCapture},
		{"blocking handle", testBlockingHandle},
		{"named context", testNamedContext},
		{"copies", testCopies},
		{"copies across contexts", testCopiesAcross},
		{"recorded event", testRecordedEvent},
		{"capture beside", testCaptureBeside},
		{"ended thread", testEndedThread},
		{"sharing", testSharing},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b.dir) })
	}
}

// testExpiredLeaseWithClasses: a closed gate whose lease has expired does not keep a launch on a low
// stream waiting for a high stream that is always busy.
func testExpiredLeaseWithClasses(t *testing.T, dir string) {
	d := newDaemon(t, streamClasses)
	p := start(t, d.Socket(), dir, "lifetime", "low")
	page := d.Page()
	p.waitFor("busy")
	d.HangWhile(func() {
		page.Hold(time.Nanosecond)
		for range 3 {
			p.send("")
			if ms := field(t, p.waitFor("low"), "n"); ms > 5000 {
				t.Errorf("a launch waited for %d ms, want about 100", ms)
			}
		}
		p.send("")
	})
	p.expectOK()
}

// testEarlyLaunch: a launch from the constructor of a linked library, which runs before the shim's
// own, does not switch the shim off.
func testEarlyLaunch(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "early", "early")
	page := d.Page()
	p.expectOK()
	if c := page.Counters(); c.Launched < 10 {
		t.Errorf("%d launches passed the gate, want nearly all of 15", c.Launched)
	}
}

// testStreamPerKernel: the bound counts the commands of destroyed streams.
func testStreamPerKernel(t *testing.T, dir string) {
	d := newDaemon(t, bound(2, 1))
	p := start(t, d.Socket(), dir, "lifetime", "streams")
	page := d.Page()
	if most := field(t, p.waitFor("most"), "n"); most > 2 && !stalled(t, page.Counters()) {
		t.Errorf("%d kernels at a time, want at most 2", most)
	}
	p.send("")
	expectCounts(p, page, "waited", 12, 12)
	p.expectOK()
}

// testDestroyedStream: a stream that is destroyed while its kernel runs is in flight until the kernel
// ends, also if the next stream has the same handle.
func testDestroyedStream(t *testing.T, dir string) {
	for name, prepare := range map[string]func(*shimpage.Page){"open": noSetup, "bound": bound(8, 1)} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, prepare)
			p := start(t, d.Socket(), dir, "lifetime", "destroyed")
			page := d.Page()
			expectCounts(p, page, "destroyed", 1, 0)
			expectCounts(p, page, "waited for another", 2, 1)
			expectCounts(p, page, "waited for the next", 3, 3)
			p.expectOK()
		})
	}
}

// expectCapturing checks at a line of the process whether a capture is in progress, and lets it go on.
func expectCapturing(p *process, page *shimpage.Page, line string, want bool) {
	p.t.Helper()
	p.waitFor(line)
	if got := page.Counters().Flags&shimpage.Capturing != 0; got != want {
		p.t.Errorf("%s: capturing %v, want %v", line, got, want)
	}
	p.send("")
}

// testCapturedContext: a capture ends with its context, and the bound is in force again.
func testCapturedContext(t *testing.T, dir string) {
	d := newDaemon(t, bound(2, 1))
	p := start(t, d.Socket(), dir, "lifetime", "captured context")
	page := d.Page()
	expectCapturing(p, page, "capturing", true)
	expectCapturing(p, page, "destroyed", false)
	if most := field(t, p.waitFor("most"), "n"); most > 2 && !stalled(t, page.Counters()) {
		t.Errorf("%d kernels at a time, want at most 2", most)
	}
	p.send("")
	p.expectOK()
}

// testJoinedStream: a capture goes on when a stream that has joined it is destroyed. Its commands are
// not counted, and the wait of late entry does not get into the graph.
func testJoinedStream(t *testing.T, dir string) {
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, "lifetime", "joined")
	page := d.Page()
	expectCapturing(p, page, "destroyed", true)
	if n := field(t, p.waitFor("nodes"), "n"); n != 5 { // three kernels and two events
		t.Errorf("the graph has %d nodes, want 5", n)
	}
	if c := page.Counters(); c.Launched != 3 || c.Flags != 0 {
		t.Errorf("%d launched, flags %b; want 3 and 0", c.Launched, c.Flags)
	}
	p.send("")
	p.expectOK()
}

// testUnseenCapture: the wait of late entry does not get into a graph, even if the shim has not seen
// the capture begin.
func testUnseenCapture(t *testing.T, dir string) {
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, "lifetime", "unseen capture")
	if n := field(t, p.waitFor("nodes"), "n"); n != 2 {
		t.Errorf("the graph has %d nodes, want 2", n)
	}
	p.send("")
	p.expectOK()
}

// testBlockingHandle: a copy on the legacy stream says nothing about a non-blocking stream, also if an
// earlier stream with its handle was blocking.
func testBlockingHandle(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "lifetime", "blocking handle")
	page := d.Page()
	if same := field(t, p.waitFor("copied"), "n"); same != 1 {
		t.Fatal("the handle was not used again")
	}
	if c := page.Counters(); c.Launched != 3 || c.Completed != 2 {
		t.Errorf("%d launched, %d done; want 3 and 2", c.Launched, c.Completed)
	}
	p.send("")
	p.expectOK()
}

// testNamedContext: a wait for a context that is named, or for the current one without a name, tells
// that the commands of this context are done.
func testNamedContext(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "lifetime", "named context")
	page := d.Page()
	expectCounts(p, page, "waited for the second", 1, 0)
	expectCounts(p, page, "waited for the first", 1, 1)
	expectCounts(p, page, "waited for the current one", 2, 2)
	p.expectOK()
}

// testCopies: a small copy to the device says nothing about the kernels ahead of it, a large one does. A
// copy of rows does if it is one to the host.
func testCopies(t *testing.T, dir string) {
	for name, prepare := range map[string]func(*shimpage.Page){"open": noSetup, "late entry": lateEntry(shimpage.LateAuto)} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, prepare)
			p := start(t, d.Socket(), dir, "lifetime", "copies")
			page := d.Page()
			expectCounts(p, page, "copied little", 3, 1)
			expectCounts(p, page, "copied much", 4, 4)
			expectCounts(p, page, "copied a row", 6, 4)
			expectCounts(p, page, "copied a row to the host", 7, 7)
			p.expectOK()
		})
	}
}

// testCopiesAcross: copies that are put on a stream while the context of another device is current belong
// to the stream's context, and do not take the kernels there with them.
func testCopiesAcross(t *testing.T, dir string) {
	for _, most := range []uint32{0, 2} {
		d := newDaemon(t, bound(most, 1))
		p := start(t, d.Socket(), dir, "lifetime", "copies across")
		page := d.Page()
		if n := field(t, p.waitFor("in flight"), "n"); most != 0 && n > uint64(most) && !stalled(t, page.Counters()) {
			t.Errorf("%d commands in flight, want at most %d", n, most)
		}
		p.send("")
		expectCounts(p, page, "waited for the context", 12, 12)
		p.expectOK()
	}
}

// testRecordedEvent: an event that was reached, and is recorded again by a call for a whole context or
// by an attribute of a launch, is not taken for reached.
func testRecordedEvent(t *testing.T, dir string) {
	for _, way := range []string{"context event", "launch event"} {
		d := newDaemon(t, lateEntry(shimpage.LateOn))
		p := start(t, d.Socket(), dir, "lifetime", way)
		page := d.Page()
		if n := field(t, p.waitFor("blocked"), "n"); n != 0 {
			t.Errorf("%s: the program was blocked %d times, want 0", way, n)
		}
		if c := page.Counters(); c.LateRequests == 0 {
			t.Errorf("%s: no request entered late, so nothing was tested", way)
		}
		p.send("")
		p.expectOK()
	}
}

// testCaptureBeside: the shim's own calls on a stream do not get into a capture of it that begins
// meanwhile on another thread, and do not invalidate it.
func testCaptureBeside(t *testing.T, dir string) {
	check := func(p *process) {
		if result := field(t, p.waitFor("ended"), "n"); result != 0 {
			t.Errorf("the end of the capture returned %d, want 0", result)
		}
		if n := field(t, p.waitFor("nodes"), "n"); n != 1 {
			t.Errorf("the graph has %d nodes, want 1", n)
		}
		p.send("")
		p.expectOK()
	}
	t.Run("query", func(t *testing.T) {
		d := newDaemon(t, noSetup)
		check(start(t, d.Socket(), dir, "lifetime", "capture beside"))
	})
	t.Run("mark", func(t *testing.T) {
		d := newDaemon(t, noSetup)
		p := start(t, d.Socket(), dir, "lifetime", "capture beside, held")
		page := d.Page()
		p.waitFor("close the gate")
		page.Hold(lease)
		p.send("")
		p.waitFor("ended") // also while the gate is closed
		page.Release()
		p.waitFor("nodes")
		p.send("")
		p.expectOK()
		for _, line := range p.output {
			if strings.HasPrefix(line, "ended") && field(t, line, "n") != 0 || strings.HasPrefix(line, "nodes") && field(t, line, "n") != 1 {
				t.Errorf("got %q, want 0 and one node", line)
			}
		}
	})
}

// testEndedThread: commands on the default stream of a thread that has ended are not in flight for ever,
// and those of another thread do not count as theirs.
func testEndedThread(t *testing.T, dir string) {
	for name, prepare := range map[string]func(*shimpage.Page){"open": noSetup, "bound": bound(8, 1)} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, prepare)
			p := start(t, d.Socket(), dir, "lifetime", "threads")
			page := d.Page()
			expectCounts(p, page, "ended", 3, 3)
			expectCounts(p, page, "done", 4, 4)
			p.expectOK()
		})
	}
}

// testSharing: requests enter at once after a call by which other processes may wait for them.
func testSharing(t *testing.T, dir string) {
	for way := range 5 {
		d := newDaemon(t, lateEntry(shimpage.LateOn))
		p := start(t, d.Socket(), dir, "lifetime", fmt.Sprint("share ", way))
		if n := field(t, p.waitFor("before"), "n"); n == 0 {
			t.Errorf("way %d: no request entered late before", way)
		}
		p.send("")
		if n := field(t, p.waitFor("after"), "n"); n != 0 {
			t.Errorf("way %d: %d requests entered late after the call, want 0", way, n)
		}
		p.send("")
		p.expectOK()
	}
}

// testOldEvent: an event of a destroyed stream says nothing about the commands of the stream that has
// its handle now.
func testOldEvent(t *testing.T, dir string) {
	for name, prepare := range map[string]func(*shimpage.Page){"open": noSetup, "bound": bound(8, 1)} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, prepare)
			p := start(t, d.Socket(), dir, "lifetime", "old event")
			page := d.Page()
			expectCounts(p, page, "destroyed", 1, 0)
			expectCounts(p, page, "waited for the event", 2, 1)
			p.expectOK()
		})
	}
}

// testHandleReused: the end of a stream does not end the capture of the one that gets its handle
// before the call that destroys it returns.
func testHandleReused(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "lifetime", "handle reused")
	page := d.Page()
	if line := p.waitFor("capturing"); field(t, line, "n") != 1 {
		t.Fatalf("%s: the double gave another handle", line)
	}
	if c := page.Counters(); c.Flags&shimpage.Capturing == 0 || c.Launched != 1 {
		t.Errorf("during the capture: flags %b, %d launched; want capturing, and 1", c.Flags, c.Launched)
	}
	p.send("")
	p.waitFor("captured")
	if c := page.Counters(); c.Flags != 0 || c.Launched != 1 {
		t.Errorf("after the capture: flags %b, %d launched; want 0, and 1", c.Flags, c.Launched)
	}
	p.send("")
	p.expectOK()
}

// testQueriesDoNotSleep: a program that only asks whether work is done is not delayed because a
// destroyed stream is busy.
func testQueriesDoNotSleep(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "lifetime", "queries")
	d.Page()
	if slept := field(t, p.waitFor("asked"), "n"); slept > 20 { // some for locks of the double
		t.Errorf("the thread slept %d times in queries of 200 ms, want at most 20", slept)
	}
	p.send("")
	p.expectOK()
}
