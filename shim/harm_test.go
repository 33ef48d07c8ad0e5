package shim_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestUnusualPrograms runs programs that an earlier version of the shim harmed. It uses the library
// as the Makefile links it, because some of the harm came from how it was linked.
func TestUnusualPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("tests of C code are skipped with -short")
	}
	b := newBuilder(t)
	b.makeLibrary()
	b.compileFakeCUDA()
	b.compile("harm", "test/harm.c")
	b.compile("harm-stub", "-DSTUB", "-rdynamic", "test/harm.c")

	ahead := func(p *shimpage.Page) { p.SetParking(5*time.Millisecond, 50*time.Millisecond) }
	for _, c := range []struct {
		name    string
		prepare func(*shimpage.Page)
		program []string
		check   func(*testing.T, shimpage.Counters, string)
	}{
		{"an event of a destroyed context", bound(4, 1), []string{"harm", "context"}, expectAllGated},
		{"setuid with the parking thread", ahead, []string{"harm", "ids"}, expectAllGated},
		{"a program's own cuLaunchKernel", noSetup, []string{"harm-stub", "stub"}, expectAllGated},
		{"a mark that joins streams", bound(8, 8), []string{"harm", "legacy"}, expectAllGated},
		{"one long kernel", bound(16, 8), []string{"harm", "long"}, expectFewOverruns},
		{"events of a shared context", bound(8, 2), []string{"harm", "release"}, expectFewEvents},
		{"parking in a shared context", both(ahead, bound(8, 2)), []string{"harm", "ahead"}, expectFewEvents},
		{"alternating contexts", ahead, []string{"harm", "contexts"}, expectAllGated},
		{"an unloaded driver", bound(4, 2), []string{"harm", "reload"}, expectAllGated},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t, c.prepare)
			p := start(t, d.Socket(), b.dir, c.program...)
			page := d.Page()
			line := p.expectOK()
			c.check(t, page.Counters(), line)
		})
	}
	for _, how := range []string{"close", "range", "from", "call", "wait", "dup2"} {
		t.Run("reused descriptors, by "+how, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchReady) })
			d.Status.SetAsleep(true)
			start(t, d.Socket(), b.dir, "harm", "files", how).expectOK()
			d.Page()
			d.Page() // the process has noticed and connected again
		})
	}
	t.Run("vfork", func(t *testing.T) {
		d := newDaemon(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchReady) })
		d.Status.SetAsleep(true)
		p := start(t, d.Socket(), b.dir, "harm", "vfork")
		_, doorbell, err := d.Page().Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		p.expectOK()
		var rung [8]byte
		if n, err := syscall.Read(doorbell, rung[:]); n != 8 || rung[0] != 4 { // ready and idle, twice each
			t.Errorf("the doorbell has %v, %v; want 4 rings", rung, err)
		}
	})
	t.Run("plugins", func(t *testing.T) { testPlugins(builder{t, b.dir}) })
	t.Run("a full /dev/shm", func(t *testing.T) { testFullMemory(t, b.dir) })
	t.Run("killed", func(t *testing.T) { testKilled(t, b.dir) })
	for name, doorbell := range badDoorbells(t) {
		t.Run("the doorbell is "+name, func(t *testing.T) { testBadDoorbell(t, b.dir, doorbell) })
	}
}

// testPlugins: a thread that loads or unloads a library may wait for a thread that uses a runtime for
// the first time. So the shim must not wait for the loader in a call of the program.
func testPlugins(b builder) {
	b.compile("plugin.so", "-DPLUGIN", "-fPIC", "-shared", "test/loader.c", "-l:libcuda.so.1")
	b.compile("loader", "test/loader.c")
	predict := both(func(p *shimpage.Page) { p.SetParking(2*time.Millisecond, 20*time.Millisecond) },
		func(p *shimpage.Page) { p.SetWatch(shimpage.PredictArrivals) })
	for _, when := range []string{"begin", "end", "again"} {
		for name, prepare := range map[string]func(*shimpage.Page){
			"bound": bound(4, 2), "late entry": lateEntry(shimpage.LateOn), "parking": predict,
		} {
			b.t.Run(when+", "+name, func(t *testing.T) {
				d := newDaemon(t, prepare)
				p := start(t, d.Socket(), b.dir, "loader", b.path("plugin.so"), when)
				page := d.Page()
				// On a busy machine it takes more requests until arrivals can be predicted.
				started := map[string]func() bool{
					"bound":      func() bool { return true },
					"late entry": func() bool { return page.Counters().LateRequests > 0 },
					"parking":    func() bool { return page.Counters().Parked > 0 },
				}[name]
				drivertest.Eventually(t, "the thread of the shim runs", started)
				if err := p.in.Close(); err != nil {
					t.Fatal(err)
				}
				p.expectOK()
				if n := page.Counters().Launched; n < 30*20 || n%20 != 0 {
					t.Errorf("%d launches passed the gate, want at least 30 requests of 20", n)
				}
			})
		}
	}
}

func both(a, b func(*shimpage.Page)) func(*shimpage.Page) {
	return func(p *shimpage.Page) {
		a(p)
		b(p)
	}
}

// expectAllGated checks that all the program's kernels ran and passed the gate.
func expectAllGated(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	if want := field(t, line, "done"); c.Launched != want || want == 0 {
		t.Errorf("%d launches passed the gate, want as many as in %q", c.Launched, line)
	}
}

// expectFewOverruns checks that commands beside a long kernel complete: their streams have marks
// of their own. A few overruns may be due to a busy machine.
func expectFewOverruns(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	expectAllGated(t, c, line)
	if c.Overruns > 4 {
		t.Errorf("%d overruns, want at most 4", c.Overruns)
	}
}

// expectFewEvents checks that there are not more events than the bound needs.
func expectFewEvents(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	expectAllGated(t, c, line)
	if n := field(t, line, "events"); n > 16 {
		t.Errorf("%d events with a bound of 8, want at most 16", n)
	}
}

// badDoorbells returns descriptors on which a write may wait, or raise SIGPIPE.
func badDoorbells(t *testing.T) map[string]int {
	t.Helper()
	var read, closed [2]int
	if err := syscall.Pipe(read[:]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Pipe2(closed[:], syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(closed[0])
	t.Cleanup(func() {
		for _, fd := range []int{read[0], read[1], closed[1]} {
			_ = syscall.Close(fd)
		}
	})
	return map[string]int{"a pipe": read[1], "a pipe without a reader": closed[1]}
}

func testBadDoorbell(t *testing.T, dir string, bad int) {
	status, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	status.SetAsleep(true) // so that the process writes to the doorbell
	statusFd, err := status.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(statusFd)
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.SetWatch(shimpage.WatchReady)
	pageFd, doorbell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pageFd)
	defer syscall.Close(doorbell)
	const yes = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	for _, c := range []struct {
		doorbell int
		launches uint64
	}{{bad, 0}, {doorbell, 3}} { // the second shows that the first tests what it should
		socket := serveAnswer(t, yes, []int{pageFd, statusFd, c.doorbell})
		start(t, socket, dir, "harm", "plain").expectOK()
		if n := page.Counters().Launched; n != c.launches {
			t.Errorf("%d launches counted, want %d", n, c.launches)
		}
	}
}
