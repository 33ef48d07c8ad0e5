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
	native := sum(start(t, nil, dir, burst...).ok())
	for _, socket := range []string{"/nowhere/s", filepath.Join(dir, "work"), string(make([]byte, 200)), dir} {
		for i, c := range socket {
			if c == 0 {
				socket = socket[:i] + "a" + socket[i+1:]
			}
		}
		if got := sum(start(t, &keeper{socket: socket}, dir, burst...).ok()); got != native {
			t.Errorf("sum %s, without the shim %s", got, native)
		}
	}
}

// A gate that a dead daemon has left shut opens by itself, and no bound of its
// stays in force.
func testDaemonDies(t *testing.T, dir string) {
	k := keep(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	p := start(t, k, dir, "work", "12080", "chain", "100")
	page := k.page()
	p.until("at 10")
	page.Hold(lease)
	held(t, page)
	began := time.Now()
	k.Die()
	p.ok()
	// Generous: the lease is a second, and the rest takes no time.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ran on for %v before it ended", took)
	}
	if c := page.Counters(); c.Overruns == 0 {
		t.Error("a lease ran out, and nobody has counted it")
	}
}

// A daemon that lives but does not put off its lease is no better.
func testDaemonHangs(t *testing.T, dir string) {
	k := keep(t, open)
	p := start(t, k, dir, "work", "12080", "chain", "100")
	page := k.page()
	p.until("at 10")
	k.HangWhile(func() {
		page.Hold(lease)
		held(t, page)
		p.ok()
	})
}

func testDaemonRestarts(t *testing.T, dir string) {
	first := keep(t, open)
	p := start(t, first, dir, "work", "12080", "hinted", "100000", "1000000")
	before := first.page()
	p.until("at 10")
	first.Die()
	second := keep(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	if err := os.Rename(second.socket, first.socket); err != nil {
		t.Fatal(err)
	}
	after := second.page()
	before.Hold(lease) // nobody looks at this one any more
	said := pagetest.Hints(t, after, 2)
	if len(said) != 2 || said[0].Kind != shimpage.HintPriority || said[0].Value != 7 || said[1].Kind != shimpage.HintSLO || said[1].Value != 9_000_000 {
		t.Errorf("a daemon that is new was told %+v", said)
	}
	for end := time.Now().Add(hang); after.Counters().Launched < before.Counters().Launched+20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the new page does not move: %+v", after.Counters())
		}
	}
	after.Hold(lease)
	held(t, after)
	after.Release()
	p.until("at ")
}

// testGateStress has threads do everything to a gate that somebody else opens and
// shuts.
func testGateStress(b bench) {
	b.compile("stress", b.path("shim.o"), "test/gate_stress.c")
	k := keep(b.t, bound(8, 4))
	p := start(b.t, k, b.dir, "stress")
	page := k.page()
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
	p.tell("enough")
	p.ok()
}

// Answers that are none leave the program as it is.
func testDaemonLies(t *testing.T, dir string) {
	native := sum(start(t, nil, dir, burst...).ok())
	const yes = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	board, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	defer board.Close()
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.Hold(time.Hour) // so that a program that takes it would not end soon
	pageFd, bell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	boardFd, err := board.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	file := plainFile(t, pageFd)
	wrong := wrongPage(t)
	for name, c := range map[string]struct {
		text string
		fds  []int
	}{
		"silence":     {},
		"refusal":     {"HTTP/1.1 403 Forbidden\r\n\r\n", []int{pageFd, boardFd, bell}},
		"nothing":     {yes, nil},
		"too few":     {yes, []int{pageFd, boardFd}},
		"not sealed":  {yes, []int{file, boardFd, bell}},
		"board too":   {yes, []int{pageFd, file, bell}},
		"wrong magic": {yes, []int{wrong, boardFd, bell}},
		"not a page":  {yes, []int{bell, bell, bell}},
		"nonsense":    {"\x00\xff", []int{pageFd}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &keeper{socket: liar(t, c.text, c.fds)}
			if got := sum(start(t, k, dir, burst...).ok()); got != native {
				t.Errorf("sum %s, without the shim %s", got, native)
			}
			if n := page.Counters().Launched; n != 0 {
				t.Errorf("the program took the page: %d launches", n)
			}
		})
	}
	t.Run("truth", func(t *testing.T) { // so that the rest means something
		page.Release()
		k := &keeper{socket: liar(t, yes, []int{pageFd, boardFd, bell})}
		start(t, k, dir, burst...).ok()
		if page.Counters().Launched == 0 {
			t.Error("the program has not taken the page")
		}
	})
}

// plainFile is what a page is, byte for byte, but can be truncated.
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

// wrongPage is a page of another time.
func wrongPage(t *testing.T) int {
	page, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Close)
	page.Hold(time.Hour)
	fd, bell, err := page.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(bell)
	if _, err := syscall.Pwrite(fd, []byte{99}, 4); err != nil { // abi
		t.Fatal(err)
	}
	return fd
}

// liar answers every hello with the same.
func liar(t *testing.T, text string, fds []int) (socket string) {
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
