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

// testCUDA runs CUDA programs on a driver of ours that checks the order of
// things, with the shim before them and without; and on daemons of all kinds.
func testCUDA(b bench) {
	b.compile("libcuda.so.1", "test/fakecuda.c", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1,-Bsymbolic")
	b.compile("work", "test/cudawork.c")
	b.compile("conform-cuda", b.path("shim.o"), "test/cuda_conform.c", "-l:libcuda.so.1")
	b.t.Run("conform", func(t *testing.T) { bench{t, b.dir}.conforms("conform-cuda") })
	b.compile("linkedwork", "-DLINKED", "test/cudawork.c", "-l:libcuda.so.1")

	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"order", testCUDAOrder},
		{"threads", testCUDAThreads},
		{"threads' streams", testCUDAPerThread},
		{"capture", testCUDACapture},
		{"bound", testCUDABound},
		{"launches that wait for others", testCUDAWaits},
		{"ready and idle", testCUDAReady},
		{"hints", testCUDAHints},
		{"contexts", testCUDAContexts},
		{"another context", testCUDAAcross},
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
	} {
		b.t.Run(test.name, func(t *testing.T) { test.run(t, b.dir) })
	}
}

// field is a number in a program's last line.
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

func open(*shimpage.Page) {}

func bound(n, batch uint32) func(*shimpage.Page) {
	return func(p *shimpage.Page) { p.SetBound(n, batch) }
}

// ways are those in which a program may find the driver.
var ways = [][]string{
	{"linkedwork", "linked"},
	{"work", "dlsym"},
	{"work", "11080"},
	{"work", "12080"},
	{"work", "13000"},
	{"work", "13020"},
	{"work", "12080p"},
	{"work", "13020p"},
}

// A program gets the same results whatever the gate does, and all that it puts on
// the device has passed the gate.
func testCUDAOrder(t *testing.T, dir string) {
	for _, way := range ways {
		args := append(way, "order", "2")
		native := start(t, nil, dir, args...).ok()
		check := func(name string, prepare func(*shimpage.Page), during func(*shimpage.Page)) {
			t.Run(way[1]+", "+name, func(t *testing.T) {
				k := keep(t, prepare)
				p := start(t, k, dir, args...)
				page := k.page()
				during(page)
				line := p.ok()
				if sum(line) != sum(native) {
					t.Errorf("%s, without the shim %s", line, native)
				}
				c := page.Counters()
				if want := field(t, line, "commands"); c.Launched != want || c.Runtimes != runtimeCUDA {
					t.Errorf("%d of %d commands passed the gate; runtimes %b", c.Launched, want, c.Runtimes)
				}
				// All is known to be done but what nobody has waited for since.
				if c.Completed > c.Launched || c.Launched-c.Completed > 8 {
					t.Errorf("%d of %d commands known to be done", c.Completed, c.Launched)
				}
			})
		}
		check("open", open, open)
		check("bound", bound(2, 1), open)
		check("held", func(p *shimpage.Page) { p.Hold(lease) }, func(p *shimpage.Page) {
			held(t, p)
			time.Sleep(50 * time.Millisecond)
			if c := p.Counters(); c.Launched != 0 || c.Flags&shimpage.Ready == 0 {
				t.Errorf("held: %d commands passed, flags %b", c.Launched, c.Flags)
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

// The default streams of two threads are two.
func testCUDAPerThread(t *testing.T, dir string) {
	for _, prepare := range []func(*shimpage.Page){open, bound(1, 1), bound(16, 8)} {
		k := keep(t, prepare)
		p := start(t, k, dir, "work", "13000p", "threads", "8")
		page := k.page()
		line := p.ok()
		if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want || c.Completed != want {
			t.Errorf("%d launched, %d done, of %d", c.Launched, c.Completed, want)
		}
	}
	for _, prepare := range []func(*shimpage.Page){open, bound(4, 2)} {
		k := keep(t, prepare)
		p := start(t, k, dir, "work", "13000p", "own", "9")
		page := k.page()
		p.until("done 9")
		if c := page.Counters(); c.Launched != 10 || c.Completed != 9 {
			t.Errorf("%d launched, %d done; want 10, and 9: one is another thread's", c.Launched, c.Completed)
		}
		p.tell("go on")
		p.ok()
	}
}

// stoodStill reports whether the bound was let go a few times, as it is when nothing has
// moved for 100 ms: on a machine that is busy nothing may.
func stoodStill(t *testing.T, c shimpage.Counters) bool {
	t.Helper()
	if c.Overruns > 0 {
		t.Logf("the bound was let go %d times", c.Overruns)
	}
	return c.Overruns > 0 && c.Overruns <= 3
}

// There are never more commands in flight than the bound says, and the bound can
// be set while the program runs.
func testCUDABound(t *testing.T, dir string) {
	for _, c := range []struct{ bound, batch uint32 }{{1, 8}, {4, 8}, {4, 1}, {16, 8}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			k := keep(t, bound(c.bound, c.batch))
			p := start(t, k, dir, "work", "12080", "burst", "300")
			page := k.page()
			line := p.ok()
			n := page.Counters()
			if most := field(t, line, "most"); most == 0 || most > uint64(c.bound) && !stoodStill(t, n) {
				t.Errorf("%d in flight with a bound of %d", most, c.bound)
			}
			if n.Launched != n.Completed {
				t.Errorf("%+v", n)
			}
		})
	}
	// With a grain there are more of short ones, and of long ones as many as before.
	for _, kernels := range []struct {
		args        []string
		least, most uint64
	}{{[]string{"burst", "300"}, 5, 80}, {[]string{"chain", "20", "1000000"}, 1, 4}} {
		most := uint64(0)
		for attempt := 0; attempt < 30 && most < kernels.least; attempt++ { // on a busy machine none is short
			k := keep(t, func(p *shimpage.Page) { p.SetBound(4, 2); p.SetGrain(500 * time.Microsecond) })
			p := start(t, k, dir, append([]string{"work", "12080"}, kernels.args...)...)
			page := k.page()
			most = field(t, p.ok(), "most")
			if most > kernels.most && !stoodStill(t, page.Counters()) {
				t.Errorf("%v: %d in flight with a bound of 4 and a grain; want at most %d", kernels.args, most, kernels.most)
			}
		}
		if most < kernels.least {
			t.Errorf("%v: %d in flight with a bound of 4 and a grain; want %d at least", kernels.args, most, kernels.least)
		}
	}
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "chain", "200", "1000000")
	page := k.page()
	p.until("at 20")
	page.SetBound(1, 1)
	p.until("at 100")
	if c := page.Counters(); c.Launched-c.Completed > 1 {
		t.Errorf("%d in flight, long after the bound was set to 1", c.Launched-c.Completed)
	}
	page.SetBound(0, 0)
	p.ok()
}

// Kernels that wait for launches beyond the bound get them, and one that does not
// end holds the launches of other streams up once, not each time.
func testCUDAWaits(t *testing.T, dir string) {
	for _, n := range []uint32{1, 4} {
		k := keep(t, bound(n, 1))
		p := start(t, k, dir, "work", "12080", "waits", "40")
		page := k.page()
		p.ok()
		if c := page.Counters(); c.Overruns == 0 || c.Overruns > 12 {
			t.Errorf("bound %d: let go %d times for 40 launches that wait for each other", n, c.Overruns)
		}
	}
}

func testCUDAThreads(t *testing.T, dir string) {
	k := keep(t, bound(4, 2))
	p := start(t, k, dir, "work", "dlsym", "threads", "8")
	page := k.page()
	for range 50 {
		page.Hold(lease)
		time.Sleep(time.Millisecond)
		page.Release()
		time.Sleep(time.Millisecond)
	}
	line := p.ok()
	c := page.Counters()
	if want := field(t, line, "commands"); c.Launched != want || c.Completed != want || c.Flags != 0 {
		t.Errorf("%d launched, %d done, of %d; flags %b", c.Launched, c.Completed, want, c.Flags)
	}
	// Each thread may be one launch past the look at the bound.
	if most := field(t, line, "most"); most > 4+8 && c.Overruns == 0 {
		t.Errorf("%d in flight with a bound of 4 and 8 threads", most)
	}
}

// No capture is spoilt by what the shim does on another thread's behalf, and
// nothing of the shim's gets into a graph. What is captured is not held.
func testCUDACapture(t *testing.T, dir string) {
	k := keep(t, bound(1, 1))
	p := start(t, k, dir, "work", "12080", "capture", "20")
	page := k.page()
	for range 20 {
		page.Hold(lease)
		time.Sleep(time.Millisecond)
		page.Release()
		time.Sleep(3 * time.Millisecond)
	}
	line := p.ok()
	if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want {
		t.Errorf("%d of %d commands passed the gate", c.Launched, want)
	}
}

// Nothing of a context is asked about when it is gone: the driver would end the
// program.
func testCUDAContexts(t *testing.T, dir string) {
	native := start(t, nil, dir, "work", "12080", "contexts", "5").ok()
	for _, n := range []uint32{0, 1, 8} {
		k := keep(t, bound(n, 4))
		p := start(t, k, dir, "work", "12080", "contexts", "5")
		page := k.page()
		line := p.ok()
		if sum(line) != sum(native) {
			t.Errorf("bound %d: %s, without the shim %s", n, line, native)
		}
		if c, want := page.Counters(), field(t, line, "commands"); c.Launched != want || c.Completed != want {
			t.Errorf("bound %d: %d launched, %d done, of %d", n, c.Launched, c.Completed, want)
		}
	}
}

// A stream is one whatever context is current when it is waited for.
func testCUDAAcross(t *testing.T, dir string) {
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "across", "3")
	page := k.page()
	p.until("done 3")
	if c := page.Counters(); c.Launched != 3 || c.Completed != 3 || c.Flags != 0 {
		t.Errorf("%d launched, %d done, flags %b", c.Launched, c.Completed, c.Flags)
	}
	p.tell("go on")
	p.ok()
}

// A driver that gives out functions that it does not export is taken at its word,
// up to the last version that we know; and one whose own names lead to the shim
// does not lead the shim to itself.
func testCUDAPrivate(t *testing.T, dir string) {
	for _, binding := range []string{"-Bsymbolic", "-Bdynamic"} {
		b := bench{t, t.TempDir()}
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
		for _, way := range []string{"11080", "12080", "13000", "13020p"} {
			k := keep(t, bound(2, 1))
			p := start(t, k, b.dir, "work", way, "order", "1")
			line := p.ok()
			if c, want := k.page().Counters(), field(t, line, "commands"); c.Launched != want {
				t.Errorf("%s, %s: %d of %d commands passed the gate", binding, way, c.Launched, want)
			}
		}
		k := keep(t, open)
		start(t, k, b.dir, "work", "14000", "order", "1").ok()
		if k.Waiting() != 0 {
			t.Error("functions of a version that we do not know were taken for those we do")
		}
	}
}

// A program that writes over its page hurts itself at most: it is never held for
// longer than a lease at a time, and never crashes.
func testCUDAScribble(t *testing.T, dir string) {
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "scribble", "30")
	if line := p.until("page "); line != "page found" {
		t.Fatal(line)
	}
	p.ok()
}

// A child has no part in its parent's page; it gets one of its own.
func testCUDAFork(t *testing.T, dir string) {
	k := keep(t, bound(2, 1))
	p := start(t, k, dir, "work", "12080", "fork")
	parent, child := k.page(), k.page()
	p.ok()
	// A copy back is a command too.
	if c := parent.Counters(); c.Launched != 5+1+5+1 || c.Completed != c.Launched {
		t.Errorf("the parent: %+v", c)
	}
	if c := child.Counters(); c.Launched != 7+1 || c.Completed != c.Launched {
		t.Errorf("the child: %+v", c)
	}
}

func testCUDAExec(t *testing.T, dir string) {
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "exec")
	before, after := k.page(), k.page()
	p.ok()
	if a, b := before.Counters().Launched, after.Counters().Launched; a != 4 || b != 10 {
		t.Errorf("%d commands before exec, %d after", a, b)
	}
}

// A program that closes all descriptors keeps running, and its own files are left
// alone; after a while it has a page again.
func testCUDAClosed(t *testing.T, dir string) {
	k := keep(t, open)
	k.Status.SetAsleep(true)
	p := start(t, k, dir, "work", "12080", "closefds", "25")
	k.page()
	k.page()
	p.ok()
}

// A program that launches nothing is none of the daemon's business.
func testCUDANothing(t *testing.T, dir string) {
	k := keep(t, open)
	start(t, k, dir, "work", "12080", "nothing").ok()
	if k.Waiting() != 0 {
		t.Error("a program that launches nothing has asked for a page")
	}
}

func testCUDAHints(t *testing.T, dir string) {
	if line := start(t, nil, dir, "work", "12080", "hint").until("line"); !strings.HasSuffix(line, "-1") {
		t.Errorf("without a shim: %q", line)
	}
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "hint")
	page := k.page()
	p.ok()
	var got []string
	page.Hints(func(h shimpage.Hint) { got = append(got, fmt.Sprint(h.Kind, "=", h.Value)) })
	if want := "[2=7 4=5000000 9=1 9=2 10=1 10=2 11=1]"; fmt.Sprint(got) != want {
		t.Errorf("hints %v, want %v", got, want)
	}
	var requests int
	page.Requests(func(shimpage.Request) { requests++ })
	if requests != 2 || page.InvalidEntries() != 0 || !page.AckDoorbell() || page.Counters().OpenRequests != 0 {
		t.Errorf("%d requests, %d entries of nonsense, %d open", requests, page.InvalidEntries(), page.Counters().OpenRequests)
	}
}

// The daemon is told of the beginning and the end of work, if it asks, and woken
// for it if it sleeps; and every stretch of work is a request, if it asks at all.
func testCUDAReady(t *testing.T, dir string) {
	for _, c := range []struct {
		watch  uint32
		asleep bool
	}{{0, true}, {shimpage.LogRequests, true}, {shimpage.WatchReady, false}, {shimpage.WatchReady, true}, {shimpage.LogRequests | shimpage.ExplicitRequests, true}} {
		k := keep(t, func(p *shimpage.Page) { p.SetWatch(c.watch) })
		k.Status.SetAsleep(c.asleep)
		p := start(t, k, dir, "work", "12080", "burst", "50")
		page := k.page()
		p.ok()
		if rang := page.AckDoorbell(); rang != (c.watch == shimpage.WatchReady) {
			t.Errorf("%+v: rang %v", c, rang)
		}
		if woken := bellRang(t, page); woken != (c.watch == shimpage.WatchReady && c.asleep) {
			t.Errorf("%+v: woken %v", c, woken)
		}
		var requests []shimpage.Request
		page.Requests(func(r shimpage.Request) { requests = append(requests, r) })
		// The burst; the copy back is over with its call.
		if one := len(requests) == 1 && requests[0].Duration >= time.Millisecond; one != (c.watch != 0 && c.watch&shimpage.ExplicitRequests == 0) {
			t.Errorf("%+v: requests %v; one of 50 kernels, if they are wanted", c, requests)
		}
		if n := page.Counters(); n.Flags != 0 {
			t.Errorf("flags %b after the end", n.Flags)
		}
	}
}

// bellRang says whether the system call was made that wakes a daemon.
func bellRang(t *testing.T, page *shimpage.Page) bool {
	fd, bell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	defer syscall.Close(bell)
	if err := syscall.SetNonblock(bell, true); err != nil {
		t.Fatal(err)
	}
	n, err := syscall.Read(bell, make([]byte, 8))
	return err == nil && n == 8
}
