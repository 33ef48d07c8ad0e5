package shim_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

var burst = []string{"work", "12080", "burst", "50"}

func testNoDaemon(t *testing.T, dir string) {
	native := checksum(start(t, noShim, dir, burst...).expectOK())
	for _, socket := range []string{"/nowhere/s", filepath.Join(dir, "work"), string(make([]byte, 200)), dir} {
		for i, c := range socket {
			if c == 0 {
				socket = socket[:i] + "a" + socket[i+1:]
			}
		}
		if got := checksum(start(t, socket, dir, burst...).expectOK()); got != native {
			t.Errorf("checksum %s, without the shim %s", got, native)
		}
	}
}

// testDaemonDies: a gate that a dead daemon has left closed opens by itself, and the bound ends.
func testDaemonDies(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	p := start(t, d.Socket(), dir, "work", "12080", "chain", "100")
	page := d.Page()
	p.waitFor("at 10")
	page.Hold(lease)
	waitUntilHeld(t, page)
	began := time.Now()
	d.Die()
	p.expectOK()
	// Generous: the lease is one second.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the process ended after %v, want at most 5s", took)
	}
	if c := page.Counters(); c.Overruns == 0 {
		t.Error("an expired lease was not counted as an overrun")
	}
}

// testDaemonHangs: the same with a daemon that lives but does not renew its lease.
func testDaemonHangs(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "work", "12080", "chain", "100")
	page := d.Page()
	p.waitFor("at 10")
	d.HangWhile(func() {
		page.Hold(lease)
		waitUntilHeld(t, page)
		p.expectOK()
	})
}

func testDaemonRestarts(t *testing.T, dir string) {
	first := newDaemon(t, noSetup)
	p := start(t, first.Socket(), dir, "work", "12080", "hinted", "100000", "1000000")
	before := first.Page()
	p.waitFor("at 10")
	first.Die()
	second := newDaemon(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	if err := os.Rename(second.Socket(), first.Socket()); err != nil {
		t.Fatal(err)
	}
	after := second.Page()
	before.Hold(lease) // the process does not use this page any more
	got := pagetest.Hints(t, after, 2)
	if len(got) != 2 || got[0].Kind != shimpage.HintPriority || got[0].Value != 7 || got[1].Kind != shimpage.HintSLO || got[1].Value != 9_000_000 {
		t.Errorf("the new daemon got %+v, want priority 7 and SLO 9ms", got)
	}
	for end := time.Now().Add(timeout); after.Counters().Launched < before.Counters().Launched+20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the counters of the new page do not grow: %+v", after.Counters())
		}
	}
	after.Hold(lease)
	waitUntilHeld(t, after)
	after.Release()
	p.waitFor("at ")
}

// testGateStress runs threads that use all functions of the gate while it opens and closes.
func testGateStress(b builder) {
	b.compile("stress", b.path("shim.o"), "test/gate_stress.c")
	d := newDaemon(b.t, bound(8, 4))
	p := start(b.t, d.Socket(), b.dir, "stress")
	page := d.Page()
	for i := range uint32(200) {
		if i%2 == 0 {
			page.Hold(lease)
		} else {
			page.Release()
		}
		page.SetBound(i%13, i%5)
		time.Sleep(5 * time.Millisecond)
	}
	page.Release()
	p.send("enough")
	p.expectOK()
}

// testManyStreams: a process is idle when the program has waited for all its streams, however many
// there are, and not earlier.
func testManyStreams(b builder) {
	b.compile("streams", b.path("shim.o"), "test/streams.c")
	for _, n := range []string{"2", "64", "96", "400", "1000", "20000"} {
		d := newDaemon(b.t, noSetup)
		start(b.t, d.Socket(), b.dir, "streams", n).expectOK()
		page := d.Page()
		if c := page.Counters(); c.Launched == 0 || c.Launched != c.Completed || c.Flags != 0 {
			b.t.Errorf("%s streams: %d launched, %d done, flags %b; want all done", n, c.Launched, c.Completed, c.Flags)
		}
	}
}

// testStall: a launch waits at the bound for a limited time, however many commands there are until the
// next mark.
func testStall(b builder) {
	b.compile("stall", b.path("shim.o"), "test/stall.c")
	d := newDaemon(b.t, noSetup)
	if ms := field(b.t, start(b.t, d.Socket(), b.dir, "stall").expectOK(), "ms"); ms < 100 || ms > 4000 {
		b.t.Errorf("a launch behind 1000 commands waited for %d ms, want about 2000", ms)
	}
}

// testDaemonLies: after an invalid answer the program runs as without the shim.
func testDaemonLies(t *testing.T, dir string) {
	native := checksum(start(t, noShim, dir, burst...).expectOK())
	const yes = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	status, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.Hold(time.Hour) // a program that used this page would not end soon
	pageFd, doorbell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	statusFd, err := status.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	file := plainFile(t, pageFd)
	wrong := wrongPage(t)
	for name, c := range map[string]struct {
		text string
		fds  []int
	}{
		"silent":                 {},
		"refused":                {"HTTP/1.1 403 Forbidden\r\n\r\n", []int{pageFd, statusFd, doorbell}},
		"no descriptors":         {yes, nil},
		"too few descriptors":    {yes, []int{pageFd, statusFd}},
		"page not sealed":        {yes, []int{file, statusFd, doorbell}},
		"status page not sealed": {yes, []int{pageFd, file, doorbell}},
		"wrong version":          {yes, []int{wrong, statusFd, doorbell}},
		"not a page":             {yes, []int{doorbell, doorbell, doorbell}},
		"no HTTP":                {"\x00\xff", []int{pageFd}},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serveAnswer(t, c.text, c.fds)
			if got := checksum(start(t, socket, dir, burst...).expectOK()); got != native {
				t.Errorf("checksum %s, without the shim %s", got, native)
			}
			if n := page.Counters().Launched; n != 0 {
				t.Errorf("the program used the page for %d launches, want 0", n)
			}
		})
	}
	t.Run("valid", func(t *testing.T) { // to show that the cases above test what they should
		page.Release()
		socket := serveAnswer(t, yes, []int{pageFd, statusFd, doorbell})
		start(t, socket, dir, burst...).expectOK()
		if page.Counters().Launched == 0 {
			t.Error("the program did not use the page")
		}
	})
}

// plainFile returns a copy of a page that can be truncated.
func plainFile(t *testing.T, page int) int {
	all := make([]byte, 4096)
	if _, err := syscall.Pread(page, all, 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(all); err != nil {
		t.Fatal(err)
	}
	return int(f.Fd())
}

// wrongPage returns a page of another version.
func wrongPage(t *testing.T) int {
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Close)
	page.Hold(time.Hour)
	fd, doorbell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(doorbell)
	if _, err := syscall.Pwrite(fd, []byte{99}, 4); err != nil { // abi
		t.Fatal(err)
	}
	return fd
}

// serveAnswer answers every hello with the same text and descriptors.
func serveAnswer(t *testing.T, text string, fds []int) (socket string) {
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range conns {
			_ = c.Close()
		}
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			if text != "" {
				_, _, _ = conn.(*net.UnixConn).WriteMsgUnix([]byte(text), syscall.UnixRights(fds...), nil)
			}
		}
	}()
	return socket
}
