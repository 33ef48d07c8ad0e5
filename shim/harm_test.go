package shim_test

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestHarm runs programs that the shim has once harmed, with the library as it is
// built for use: how it is linked is part of what harmed them.
func TestHarm(t *testing.T) {
	if testing.Short() {
		t.Skip("what is tried here is C, and is tried where the tests are not -short")
	}
	b := newTools(t)
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make: it knows how the library is linked")
	}
	library := b.path("libgiveway.so")
	if out, err := exec.Command("make", "-C", "..", "CC=gcc", "SHIM="+library, library).CombinedOutput(); err != nil {
		t.Fatalf("make the library: %v\n%s", err, out)
	}
	b.compile("libcuda.so.1", "test/fakecuda.c", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1,-Bsymbolic")
	b.compile("harm", "test/harm.c")
	b.compile("harm-stub", "-DSTUB", "-rdynamic", "test/harm.c")

	ahead := func(p *shimpage.Page) { p.SetParking(5*time.Millisecond, 50*time.Millisecond) }
	for _, c := range []struct {
		name    string
		prepare func(*shimpage.Page)
		program []string
		check   func(*testing.T, shimpage.Counters, string)
	}{
		{"an event of a context that is gone", bound(4, 1), []string{"harm", "context"}, allPassed},
		{"setuid beside our thread", ahead, []string{"harm", "ids"}, allPassed},
		{"a program's own cuLaunchKernel", open, []string{"harm-stub", "stub"}, allPassed},
		{"a mark that joins streams", bound(8, 8), []string{"harm", "legacy"}, allPassed},
		{"one long kernel", bound(16, 8), []string{"harm", "long"}, fewOverruns},
		{"events of a context that others use", bound(8, 2), []string{"harm", "release"}, fewEvents},
		{"parking in a context that others use", both(ahead, bound(8, 2)), []string{"harm", "ahead"}, fewEvents},
		{"contexts in turn", ahead, []string{"harm", "contexts"}, allPassed},
		{"a driver that is unloaded", bound(4, 2), []string{"harm", "reload"}, allPassed},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := keep(t, c.prepare)
			p := start(t, k, b.dir, c.program...)
			page := k.page()
			line := p.ok()
			c.check(t, page.Counters(), line)
		})
	}
	for _, how := range []string{"close", "range", "from", "call", "wait", "dup2"} {
		t.Run("files under our numbers, by "+how, func(t *testing.T) {
			t.Parallel()
			k := keep(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchReady) })
			k.Status.SetAsleep(true)
			start(t, k, b.dir, "harm", "files", how).ok()
			k.page()
			k.page() // it has noticed, and connected again
		})
	}
	t.Run("a child with its memory", func(t *testing.T) {
		k := keep(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchReady) })
		k.Status.SetAsleep(true)
		p := start(t, k, b.dir, "harm", "vfork")
		_, bell, err := k.page().Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		p.ok()
		var rung [8]byte
		if n, err := syscall.Read(bell, rung[:]); n != 8 || rung[0] != 4 { // ready and idle, twice
			t.Errorf("the bell rang %v, %v", rung, err)
		}
	})
	t.Run("a full /dev/shm", func(t *testing.T) { testFullMemory(t, b.dir) })
	t.Run("killed", func(t *testing.T) { testKilled(t, b.dir) })
	for name, bell := range badBells(t) {
		t.Run("the bell is "+name, func(t *testing.T) { testBadBell(t, b.dir, bell) })
	}
}

func both(a, b func(*shimpage.Page)) func(*shimpage.Page) {
	return func(p *shimpage.Page) {
		a(p)
		b(p)
	}
}

// allPassed: all the program's kernels ran, and each came through the gate.
func allPassed(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	if want := field(t, line, "done"); c.Launched != want || want == 0 {
		t.Errorf("%d launches passed the gate; %s", c.Launched, line)
	}
}

// fewOverruns: what is beside a kernel that lasts has marks of its own. A
// machine that stands still for a while is no failure.
func fewOverruns(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	allPassed(t, c, line)
	if c.Overruns > 4 {
		t.Errorf("nothing moved %d times, beside streams whose kernels end at once", c.Overruns)
	}
}

// fewEvents: there are no more than the bound needs at once.
func fewEvents(t *testing.T, c shimpage.Counters, line string) {
	t.Helper()
	allPassed(t, c, line)
	if n := field(t, line, "events"); n > 16 {
		t.Errorf("%d events with a bound of 8", n)
	}
}

// badBells are descriptors that a write may wait for, or die of.
func badBells(t *testing.T) map[string]int {
	t.Helper()
	var read, shut [2]int
	if err := syscall.Pipe(read[:]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Pipe2(shut[:], syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(shut[0])
	t.Cleanup(func() {
		for _, fd := range []int{read[0], read[1], shut[1]} {
			_ = syscall.Close(fd)
		}
	})
	return map[string]int{"a pipe": read[1], "a pipe that nobody reads": shut[1]}
}

func testBadBell(t *testing.T, dir string, bad int) {
	board, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	defer board.Close()
	board.SetAsleep(true) // so that it would be rung
	boardFd, err := board.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(boardFd)
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.SetWatch(shimpage.WatchReady)
	pageFd, bell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pageFd)
	defer syscall.Close(bell)
	const yes = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	for _, c := range []struct {
		bell     int
		launches uint64
	}{{bad, 0}, {bell, 3}} { // the second so that the first means something
		k := &keeper{socket: liar(t, yes, []int{pageFd, boardFd, c.bell})}
		start(t, k, dir, "harm", "plain").ok()
		if n := page.Counters().Launched; n != c.launches {
			t.Errorf("%d launches counted, want %d", n, c.launches)
		}
	}
}
