// Package pagetest is as much of a daemon as a program's own page needs, for tests: it
// gives every program that asks a page, and can die.
package pagetest

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// Hang is what nothing takes, however slow the machine.
const Hang = 30 * time.Second

// Lease is how long a gate stays closed after the daemon's death: longer than a machine
// stands still, most likely.
const Lease = time.Second

// Daemon is one that does as it is told.
type Daemon struct {
	Board *shimpage.StatusPage

	t       testing.TB
	socket  string
	prepare func(*shimpage.Page)
	arrived chan *shimpage.Page
	answer  func(*net.UnixConn) // nil: as it should be

	mu     sync.Mutex
	listen net.Listener
	dead   chan struct{}
	conns  []net.Conn
	pages  []*shimpage.Page
}

// New starts a daemon at a socket of its own, where this process's programs and its
// children look for it. Each page is as prepare leaves it.
func New(t testing.TB, prepare func(*shimpage.Page)) *Daemon {
	t.Helper()
	d := At(t, filepath.Join(t.TempDir(), "s"), prepare)
	t.Setenv("GIVEWAY_SOCKET", d.socket)
	return d
}

// At starts a daemon at a socket, perhaps after another.
func At(t testing.TB, socket string, prepare func(*shimpage.Page)) *Daemon {
	t.Helper()
	if prepare == nil {
		prepare = func(*shimpage.Page) {}
	}
	d := &Daemon{t: t, socket: socket, prepare: prepare, arrived: make(chan *shimpage.Page, 64), dead: make(chan struct{})}
	var err error
	if d.Board, err = shimpage.NewStatusPage(); err != nil {
		t.Fatal(err)
	}
	if d.listen, err = net.Listen("unix", socket); err != nil {
		t.Fatal(err)
	}
	go d.serve()
	go d.keepLeases()
	t.Cleanup(func() {
		d.Die()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range d.pages {
			p.Close()
		}
		d.Board.Close()
	})
	return d
}

// Answer has the daemon do something else with who asks for a page.
func (d *Daemon) Answer(f func(*net.UnixConn)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = f
}

// Socket is where it listens.
func (d *Daemon) Socket() string { return d.socket }

func (d *Daemon) serve() {
	for {
		conn, err := d.listen.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.conns = append(d.conns, conn)
		answer := d.answer
		d.mu.Unlock()
		if answer == nil {
			answer = d.welcome
		}
		go answer(conn.(*net.UnixConn))
	}
}

func (d *Daemon) welcome(conn *net.UnixConn) {
	var head strings.Builder
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return // it came to see whether anybody is here
		}
		if line == "\r\n" {
			break
		}
		head.WriteString(line)
	}
	for _, want := range []string{"POST /v1/shim HTTP/1.1\r\n", "Host: giveway\r\n", "Content-Length: 0\r\n", "Giveway-Abi: 1\r\n"} {
		if !strings.Contains(head.String(), want) {
			d.t.Errorf("no %q in the greeting %q", want, head.String())
		}
	}
	page, err := shimpage.NewPage()
	if err != nil {
		d.t.Error(err)
		return
	}
	d.prepare(page)
	d.mu.Lock()
	d.pages = append(d.pages, page)
	d.mu.Unlock()
	d.Give(conn, page)
	d.arrived <- page
}

// Give sends a page as a daemon does.
func (d *Daemon) Give(conn *net.UnixConn, page *shimpage.Page) {
	fd, bell, err := page.Descriptors()
	if err != nil {
		d.t.Error(err)
		return
	}
	defer syscall.Close(fd)
	defer syscall.Close(bell)
	board, err := d.Board.Descriptor()
	if err != nil {
		d.t.Error(err)
		return
	}
	defer syscall.Close(board)
	text := []byte("HTTP/1.1 101 Switching Protocols\r\n\r\n")
	_, _, _ = conn.WriteMsgUnix(text, syscall.UnixRights(fd, board, bell), nil) // it may have gone
}

func (d *Daemon) keepLeases() {
	for {
		select {
		case <-d.dead:
			return
		case <-time.After(Lease / 6):
		}
		d.mu.Lock()
		for _, p := range d.pages {
			p.RenewGateLease(Lease)
			p.RenewQueueLease(Lease)
		}
		d.mu.Unlock()
	}
}

// Die leaves everything as it is, as a kill does. Twice equals once.
func (d *Daemon) Die() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.dead:
		return
	default:
	}
	close(d.dead)
	_ = d.listen.Close()
	for _, c := range d.conns {
		_ = c.Close()
	}
}

// Page is that of the next program that has come.
func (d *Daemon) Page() *shimpage.Page {
	d.t.Helper()
	select {
	case p := <-d.arrived:
		return p
	case <-time.After(Hang):
		d.t.Fatal("no program has asked for a page")
		return nil
	}
}

// Waiting is how many programs have come that Page has not told of.
func (d *Daemon) Waiting() int { return len(d.arrived) }

// HangWhile has it put no lease off any more, for as long as f takes.
func (d *Daemon) HangWhile(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// Until waits for something to become so.
func Until(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(Hang); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never comes to this: %s", what)
		}
	}
}

// Hints takes n hints from a page.
func Hints(t testing.TB, p *shimpage.Page, n int) (all []shimpage.Hint) {
	t.Helper()
	Until(t, "all hints are there", func() bool {
		p.Hints(func(h shimpage.Hint) { all = append(all, h) })
		return len(all) >= n
	})
	if len(all) != n {
		t.Fatalf("%d hints, want %d: %v", len(all), n, all)
	}
	return all
}
