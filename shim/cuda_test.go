package shim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

const runtimeCUDA = 1 // in gw_page.runtimes

// testCUDA runs CUDA programs on a fake driver that checks the order of commands, with and
// without the shim, and with daemons that misbehave.
func testCUDA(b builder) {
	b.compileFakeCUDA()
	b.compile("work", "test/cudawork.c")
	b.compile("conform-cuda", b.path("shim.o"), "test/cuda_conform.c", "-l:libcuda.so.1")
	b.t.Run("conform", func(t *testing.T) { builder{t, b.dir}.conforms("conform-cuda") })
	b.compile("linkedwork", "-DLINKED", "test/cudawork.c", "-l:libcuda.so.1")

	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"order", testCUDAOrder},
		{"threads", testCUDAThreads},
		{"per-thread streams", testCUDAPerThread},
		{"capture", testCUDACapture},
		{"bound", testCUDABound},
		{"launches that wait for others", testCUDAWaits},
		{"a stream without a wait", testCUDAUnwaited},
		{"ready and idle", testCUDAReady},
		{"hints", testCUDAHints},
		{"contexts", testCUDAContexts},
		{"another context", testCUDAAcross},
		{"an event of a stream that is no more", testCUDAReused},
		{"private addresses", testCUDAPrivate},
		{"fork", testCUDAFork},
		{"exec", testCUDAExec},
		{"nothing", testCUDANothing},
		{"closed descriptors", testCUDAClosed},
		{"scribbled page", testCUDAScribble},
		{"no daemon", testNoDaemon},
		{"daemon dies", testDaemonDies},
		{"daemon hangs", testDaemonHangs},
		{"daemon restarts", testDaemonRestarts},
		{"daemon lies", testDaemonLies},
		{"park", testPark},
		{"late entry", testLate},
		{"stream classes", testClasses},
	} {
		b.t.Run(test.name, func(t *testing.T) { test.run(t, b.dir) })
	}
}

// compileFakeCUDA compiles the fake driver, unless another test has.
func (b builder) compileFakeCUDA() {
	b.t.Helper()
	const library = "libcuda.so.1"
	if _, err := os.Stat(b.path(library)); err == nil {
		return
	}
	b.compile(library, "test/fakecuda.c", "-fPIC", "-shared", "-Wl,-soname,"+library+",-Bsymbolic")
}

// field returns a number from a process's last line.
func field(t *testing.T, line, name string) uint64 {
	t.Helper()
	_, rest, ok := strings.Cut(line, name+"=")
	digits, _, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		t.Fatalf("no %s in %q", name, line)
	}
	return n
}

func noSetup(*shimpage.Page) {}

func bound(n, batch uint32) func(*shimpage.Page) {
	return func(p *shimpage.Page) { p.SetBound(n, batch) }
}

// lookups are the ways in which a program may find the driver: the program and its argument.
var lookups = [][]string{
	{"linkedwork", "linked"},
	{"work", "dlsym"},
	{"work", "11080"},
	{"work", "12080"},
	{"work", "13000"},
	{"work", "13020"},
	{"work", "12080p"},
	{"work", "13020p"},
}

// testCUDAOrder: a program gets the same results whatever the gate does, and all its commands pass
// the gate.
func testCUDAOrder(t *testing.T, dir string) {
	for _, lookup := range lookups {
		args := append(lookup, "order", "2")
		native := start(t, noShim, dir, args...).expectOK()
		check := func(name string, prepare func(*shimpage.Page), during func(*shimpage.Page)) {
			t.Run(lookup[1]+", "+name, func(t *testing.T) {
				d := newDaemon(t, prepare)
				p := start(t, d.Socket(), dir, args...)
				page := d.Page()
				during(page)
				line := p.expectOK()
				if checksum(line) != checksum(native) {
					t.Errorf("got %s, without the shim %s", line, native)
				}
				c := page.Counters()
				if want := field(t, line, "commands"); c.Launched != want || c.Runtimes != runtimeCUDA {
					t.Errorf("%d of %d commands passed the gate; runtimes %b", c.Launched, want, c.Runtimes)
				}
				// All commands are known to be done except those that the program has not waited for.
				if c.Completed > c.Launched || c.Launched-c.Completed > 8 {
					t.Errorf("%d of %d commands known to be done", c.Completed, c.Launched)
				}
			})
		}
		check("open", noSetup, noSetup)
		check("bound", bound(2, 1), noSetup)
		check("held", func(p *shimpage.Page) { p.Hold(lease) }, func(p *shimpage.Page) {
			waitUntilHeld(t, p)
			time.Sleep(50 * time.Millisecond)
			if c := p.Counters(); c.Launched != 0 || c.Flags&shimpage.Ready == 0 {
				t.Errorf("held: %d commands passed, flags %b; want 0 and ready", c.Launched, c.Flags)
			}
			p.Release()
		})
		check("flapping", bound(3, 8), func(p *shimpage.Page) {
			for range 20 {
				p.Hold(lease)
				time.Sleep(2 * time.Millisecond)
				p.Release()
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// testCUDAPerThread: the default streams of two threads are two streams.
func testCUDAPerThread(t *testing.T, dir string) {
	for _, prepare := range []func(*shimpage.Page){noSetup, bound(1, 1), bound(16, 8)} {
		d := newDaemon(t, prepare)
		p := start(t, d.Socket(), dir, "work", "13000p", "threads", "8")
		page := d.Page()
		line := p.expectOK()
		if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want || c.Completed != want {
			t.Errorf("%d launched, %d done, want %d", c.Launched, c.Completed, want)
		}
	}
	for _, prepare := range []func(*shimpage.Page){noSetup, bound(4, 2)} {
		d := newDaemon(t, prepare)
		p := start(t, d.Socket(), dir, "work", "13000p", "own", "9")
		page := d.Page()
		p.waitFor("done 9")
		if c := page.Counters(); c.Launched != 10 || c.Completed != 9 {
			t.Errorf("%d launched, %d done; want 10 and 9, because one is on another thread's stream", c.Launched, c.Completed)
		}
		p.send("go on")
		p.expectOK()
	}
}

// stalled reports whether there were a few overruns. There is one whenever nothing completes for
// 100 ms, which may happen on a busy machine.
func stalled(t *testing.T, c shimpage.Counters) bool {
	t.Helper()
	if c.Overruns > 0 {
		t.Logf("%d overruns", c.Overruns)
	}
	return c.Overruns > 0 && c.Overruns <= 3
}

// testCUDABound: there are never more commands in flight than the bound allows, and the bound can
// be changed while the program runs.
func testCUDABound(t *testing.T, dir string) {
	for _, c := range []struct{ bound, batch uint32 }{{1, 8}, {4, 8}, {4, 1}, {16, 8}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			d := newDaemon(t, bound(c.bound, c.batch))
			p := start(t, d.Socket(), dir, "work", "12080", "burst", "300")
			page := d.Page()
			line := p.expectOK()
			n := page.Counters()
			if most := field(t, line, "most"); most == 0 || most > uint64(c.bound) && !stalled(t, n) {
				t.Errorf("%d in flight, want at most %d", most, c.bound)
			}
			if n.Launched != n.Completed {
				t.Errorf("got %+v, want all commands completed", n)
			}
		})
	}
	// With a grain more short commands are in flight, and as many long ones as before.
	for _, kernels := range []struct {
		args        []string
		least, most uint64
	}{{[]string{"burst", "300"}, 5, 80}, {[]string{"chain", "20", "1000000"}, 1, 4}} {
		most := uint64(0)
		for attempt := 0; attempt < 30 && most < kernels.least; attempt++ { // on a busy machine no command is short
			d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(4, 2); p.SetGrain(500 * time.Microsecond) })
			p := start(t, d.Socket(), dir, append([]string{"work", "12080"}, kernels.args...)...)
			page := d.Page()
			most = field(t, p.expectOK(), "most")
			if most > kernels.most && !stalled(t, page.Counters()) {
				t.Errorf("%v: %d in flight with a bound of 4 and a grain; want at most %d", kernels.args, most, kernels.most)
			}
		}
		if most < kernels.least {
			t.Errorf("%v: %d in flight with a bound of 4 and a grain; want %d at least", kernels.args, most, kernels.least)
		}
	}
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "chain", "200", "1000000")
	page := d.Page()
	p.waitFor("at 20")
	page.SetBound(1, 1)
	p.waitFor("at 100")
	if c := page.Counters(); c.Launched-c.Completed > 1 {
		t.Errorf("%d in flight long after the bound was set, want at most 1", c.Launched-c.Completed)
	}
	page.SetBound(0, 0)
	p.expectOK()
}

// testCUDAWaits: kernels that wait for launches beyond the bound get them. A kernel that does not
// end delays the launches on other streams once, not each time.
func testCUDAWaits(t *testing.T, dir string) {
	for _, n := range []uint32{1, 4} {
		d := newDaemon(t, bound(n, 1))
		p := start(t, d.Socket(), dir, "work", "12080", "waits", "40")
		page := d.Page()
		p.expectOK()
		if c := page.Counters(); c.Overruns == 0 || c.Overruns > 12 {
			t.Errorf("bound %d: %d overruns for 40 launches that wait for each other, want 1 to 12", n, c.Overruns)
		}
	}
}

// testCUDAUnwaited: commands on a stream that the program never waits for are known to be done
// after a while, so the process becomes idle.
func testCUDAUnwaited(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "unwaited", "40")
	page := d.Page()
	p.waitFor("done 40")
	if c := page.Counters(); c.Launched != c.Completed || c.Flags != 0 {
		t.Errorf("%d launched, %d done, flags %b; want all done, and no flags", c.Launched, c.Completed, c.Flags)
	}
	p.send("go on")
	p.expectOK()
}

// testCUDAReused: an event that was recorded in a destroyed stream says nothing about the next
// stream that has the same handle.
func testCUDAReused(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "reused", "5")
	page := d.Page()
	p.waitFor("done 5")
	if c := page.Counters(); c.Launched != 10 || c.Completed != 5 {
		t.Errorf("%d launched, %d done; want 10 and 5", c.Launched, c.Completed)
	}
	p.send("go on")
	p.expectOK()
}

func testCUDAThreads(t *testing.T, dir string) {
	d := newDaemon(t, bound(4, 2))
	p := start(t, d.Socket(), dir, "work", "dlsym", "threads", "8")
	page := d.Page()
	for range 50 {
		page.Hold(lease)
		time.Sleep(time.Millisecond)
		page.Release()
		time.Sleep(time.Millisecond)
	}
	line := p.expectOK()
	c := page.Counters()
	if want := field(t, line, "commands"); c.Launched != want || c.Completed != want || c.Flags != 0 {
		t.Errorf("%d launched, %d done, flags %b; want %d, %d, 0", c.Launched, c.Completed, c.Flags, want, want)
	}
	// Each thread may make one more launch after it has checked the bound.
	if most := field(t, line, "most"); most > 4+8 && c.Overruns == 0 {
		t.Errorf("%d in flight with a bound of 4 and 8 threads", most)
	}
}

// testCUDACapture: the shim's calls for other threads invalidate no capture and do not get into a
// graph. Captured commands are not held.
func testCUDACapture(t *testing.T, dir string) {
	d := newDaemon(t, bound(1, 1))
	p := start(t, d.Socket(), dir, "work", "12080", "capture", "20")
	page := d.Page()
	for range 20 {
		page.Hold(lease)
		time.Sleep(time.Millisecond)
		page.Release()
		time.Sleep(3 * time.Millisecond)
	}
	line := p.expectOK()
	if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want {
		t.Errorf("%d of %d commands passed the gate", c.Launched, want)
	}
}

// testCUDAContexts: the shim queries nothing of a destroyed context, which would end the program.
func testCUDAContexts(t *testing.T, dir string) {
	native := start(t, noShim, dir, "work", "12080", "contexts", "5").expectOK()
	for _, n := range []uint32{0, 1, 8} {
		d := newDaemon(t, bound(n, 4))
		p := start(t, d.Socket(), dir, "work", "12080", "contexts", "5")
		page := d.Page()
		line := p.expectOK()
		if checksum(line) != checksum(native) {
			t.Errorf("bound %d: got %s, without the shim %s", n, line, native)
		}
		if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want || c.Completed != want {
			t.Errorf("bound %d: %d launched, %d done, want %d", n, c.Launched, c.Completed, want)
		}
	}
}

// testCUDAAcross: a program may wait for a stream, and record an event, while another context is current.
func testCUDAAcross(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "across", "3")
	page := d.Page()
	expectCounts(p, page, "done 3", 3, 3)
	expectCounts(p, page, "done 3", 6, 6)
	p.expectOK()
}

// testCUDAPrivate: if the driver returns functions that it does not export, they are identified by
// name, up to the newest version that the shim knows. A driver that looks up its own symbols
// finds the shim's wrappers, which must not make a wrapper call itself.
func testCUDAPrivate(t *testing.T, dir string) {
	for _, binding := range []string{"-Bsymbolic", "-Bdynamic"} {
		b := builder{t, t.TempDir()}
		const few = "{ global: cuGetProcAddress*; cuCtx*; cuEvent*; cuStream*; cuThread*; fake*; local: *; };"
		if err := os.WriteFile(b.path("few.map"), []byte(few), 0o600); err != nil {
			t.Fatal(err)
		}
		b.compile("libcuda.so.1", "test/fakecuda.c", "-fPIC", "-shared",
			"-Wl,-soname,libcuda.so.1,"+binding+",--version-script="+b.path("few.map"))
		for _, name := range []string{"work", "libgiveway.so"} {
			if err := os.Symlink(filepath.Join(dir, name), b.path(name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, lookup := range []string{"11080", "12080", "13000", "13020p"} {
			d := newDaemon(t, bound(2, 1))
			p := start(t, d.Socket(), b.dir, "work", lookup, "order", "1")
			line := p.expectOK()
			if c, want := d.Page().Counters(), field(t, line, "commands"); c.Launched != want {
				t.Errorf("%s, %s: %d of %d commands passed the gate", binding, lookup, c.Launched, want)
			}
		}
		d := newDaemon(t, noSetup)
		start(t, d.Socket(), b.dir, "work", "14000", "order", "1").expectOK()
		if d.Waiting() != 0 {
			t.Error("functions of an unknown version were replaced by wrappers")
		}
	}
}

// testCUDAScribble: a program that overwrites its page does not crash, and is never held for longer
// than a lease at a time.
func testCUDAScribble(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "scribble", "30")
	if line := p.waitFor("page "); line != "page found" {
		t.Fatal(line)
	}
	p.expectOK()
}

// testCUDAFork: a child does not use its parent's page and gets its own.
func testCUDAFork(t *testing.T, dir string) {
	d := newDaemon(t, bound(2, 1))
	p := start(t, d.Socket(), dir, "work", "12080", "fork")
	parent, child := d.Page(), d.Page()
	p.expectOK()
	// The copy back is a command too.
	if c := parent.Counters(); c.Launched != 5+1+5+1 || c.Completed != c.Launched {
		t.Errorf("parent: got %+v, want 12 launched and completed", c)
	}
	if c := child.Counters(); c.Launched != 7+1 || c.Completed != c.Launched {
		t.Errorf("child: got %+v, want 8 launched and completed", c)
	}
}

func testCUDAExec(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "exec")
	before, after := d.Page(), d.Page()
	p.expectOK()
	if a, b := before.Counters().Launched, after.Counters().Launched; a != 4 || b != 10 {
		t.Errorf("%d commands before exec and %d after, want 4 and 10", a, b)
	}
}

// testCUDAClosed: a program that closes all descriptors keeps running, its own files are not
// written, and after a while it has a page again.
func testCUDAClosed(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	d.Status.SetAsleep(true)
	p := start(t, d.Socket(), dir, "work", "12080", "closefds", "25")
	d.Page()
	d.Page()
	p.expectOK()
}

// testCUDANothing: a program that launches nothing does not ask for a page.
func testCUDANothing(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	start(t, d.Socket(), dir, "work", "12080", "nothing").expectOK()
	if d.Waiting() != 0 {
		t.Error("a program that launches nothing has asked for a page")
	}
}

func testCUDAHints(t *testing.T, dir string) {
	if line := start(t, noShim, dir, "work", "12080", "hint").waitFor("line"); !strings.HasSuffix(line, "-1") {
		t.Errorf("without the shim: got %q, want -1", line)
	}
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "hint")
	page := d.Page()
	p.expectOK()
	var got []string
	page.Hints(func(h shimpage.Hint) { got = append(got, fmt.Sprint(h.Kind, "=", h.Value)) })
	if want := "[2=7 4=5000000 9=1 9=2 10=1 10=2 11=1]"; fmt.Sprint(got) != want {
		t.Errorf("hints %v, want %v", got, want)
	}
	var requests int
	page.Requests(func(shimpage.Request) { requests++ })
	if requests != 2 || page.InvalidEntries() != 0 || !page.AckDoorbell() || page.Counters().OpenRequests != 0 {
		t.Errorf("%d requests, %d invalid entries, %d open; want 2, 0, 0 and a ring", requests, page.InvalidEntries(), page.Counters().OpenRequests)
	}
}

// testCUDAReady: the doorbell rings when the process becomes ready or idle, if the daemon watches
// for that, and its eventfd is written if the daemon sleeps. The time from ready to idle is
// logged as a request if the daemon wants requests.
func testCUDAReady(t *testing.T, dir string) {
	for _, c := range []struct {
		watch  uint32
		asleep bool
	}{{0, true}, {shimpage.LogRequests, true}, {shimpage.WatchReady, false}, {shimpage.WatchReady, true}, {shimpage.LogRequests | shimpage.ExplicitRequests, true}} {
		d := newDaemon(t, func(p *shimpage.Page) { p.SetWatch(c.watch) })
		d.Status.SetAsleep(c.asleep)
		p := start(t, d.Socket(), dir, "work", "12080", "burst", "50")
		page := d.Page()
		p.expectOK()
		if rang := page.AckDoorbell(); rang != (c.watch == shimpage.WatchReady) {
			t.Errorf("%+v: rang %v, want %v", c, rang, !rang)
		}
		if woken := doorbellWritten(t, page); woken != (c.watch == shimpage.WatchReady && c.asleep) {
			t.Errorf("%+v: woken %v, want %v", c, woken, !woken)
		}
		var requests []shimpage.Request
		page.Requests(func(r shimpage.Request) { requests = append(requests, r) })
		// One request for the burst; the copy back is done when its call returns.
		if one := len(requests) == 1 && requests[0].Duration >= time.Millisecond; one != (c.watch != 0 && c.watch&shimpage.ExplicitRequests == 0) {
			t.Errorf("%+v: requests %v, want one of 50 kernels if the daemon wants requests", c, requests)
		}
		if n := page.Counters(); n.Flags != 0 || n.Idled != 1 {
			t.Errorf("flags %b, %d times out of work; want 0 and once", n.Flags, n.Idled)
		}
	}
}

// doorbellWritten reports whether the process has written to the doorbell's eventfd.
func doorbellWritten(t *testing.T, page *shimpage.Page) bool {
	fd, doorbell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	defer syscall.Close(doorbell)
	if err := syscall.SetNonblock(doorbell, true); err != nil {
		t.Fatal(err)
	}
	n, err := syscall.Read(doorbell, make([]byte, 8))
	return err == nil && n == 8
}
