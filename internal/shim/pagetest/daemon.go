// Package pagetest holds test doubles for both sides of a page: Daemon gives a page to every
// process that asks and can die or hang, Process plays a process with a page.
package pagetest

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// Timeout is longer than anything in a test takes, even on a slow machine.
const Timeout = 30 * time.Second

// Lease is how long a gate stays closed after the daemon's death. It is longer than a busy
// machine is likely to stand still.
const Lease = time.Second

// Daemon is a daemon that only hands out pages and renews leases.
type Daemon struct {
	Status *shimpage.StatusPage

	t       testing.TB
	socket  string
	prepare func(*shimpage.Page)
	arrived chan *shimpage.Page
	answer  func(*net.UnixConn) // nil: a page

	mu       sync.Mutex
	versions pageabi.Versions // that it understands
	listen   net.Listener
	dead     chan struct{}
	conns    []net.Conn
	pages    []*shimpage.Page
}

// New starts a daemon on a new socket and sets GIVEWAY_SOCKET to it. prepare is called with
// each page before it is sent.
func New(t testing.TB, prepare func(*shimpage.Page)) *Daemon {
	t.Helper()
	d := At(t, filepath.Join(t.TempDir(), "s"), prepare)
	t.Setenv("GIVEWAY_SOCKET", d.socket)
	return d
}

// At starts a daemon on a given socket, for example after another daemon has died.
func At(t testing.TB, socket string, prepare func(*shimpage.Page)) *Daemon {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return On(t, l, prepare)
}

// On starts a daemon on a listening socket, for example one of Listen.
func On(t testing.TB, l net.Listener, prepare func(*shimpage.Page)) *Daemon {
	t.Helper()
	if prepare == nil {
		prepare = func(*shimpage.Page) {}
	}
	d := &Daemon{
		t: t, socket: l.Addr().String(), listen: l, prepare: prepare,
		arrived: make(chan *shimpage.Page, 64), dead: make(chan struct{}), versions: pageabi.Understood,
	}
	var err error
	if d.Status, err = shimpage.NewStatusPage(); err != nil {
		t.Fatal(err)
	}
	go d.serve()
	go d.renewLeases()
	t.Cleanup(func() {
		d.Die()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range d.pages {
			p.Close()
		}
		d.Status.Close()
	})
	return d
}

// Answer replaces the daemon's answer to a request for a page.
func (d *Daemon) Answer(f func(*net.UnixConn)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = f
}

// Socket returns the path of the daemon's socket.
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
			answer = d.sendNewPage
		}
		go answer(conn.(*net.UnixConn))
	}
}

// sendNewPage answers as the real daemon does.
func (d *Daemon) sendNewPage(conn *net.UnixConn) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return // the process only checked whether there is a daemon
	}
	var shim pageabi.Versions
	_, err1 := fmt.Sscan(r.Header.Get("Giveway-Abi"), &shim.Lowest)
	_, err2 := fmt.Sscan(cmp.Or(r.Header.Get("Giveway-Abi-Max"), r.Header.Get("Giveway-Abi")), &shim.Highest)
	if r.Method != http.MethodPost || r.URL.Path != "/v1/shim" || r.Host != "giveway" || r.ContentLength != 0 || err1 != nil || err2 != nil {
		d.t.Errorf("hello is %s %s with %v", r.Method, r.URL, r.Header)
		return
	}
	d.mu.Lock()
	version := d.versions.Common(shim)
	d.mu.Unlock()
	if version == 0 {
		_, _ = io.WriteString(conn, "HTTP/1.1 409 Conflict\r\n\r\n") // the process may have exited
		return
	}
	d.sendPage(conn, fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nUpgrade: giveway-shim/%d\r\n\r\n", version), version)
}

// sendPage sends an answer with a new page of a version.
func (d *Daemon) sendPage(conn *net.UnixConn, answer string, version uint32) {
	page, err := shimpage.NewPageOf(version)
	if err != nil {
		d.t.Error(err)
		return
	}
	d.prepare(page)
	page.RenewOrdersLease(Lease)
	d.mu.Lock()
	d.pages = append(d.pages, page)
	d.mu.Unlock()
	d.send(conn, answer, page)
	d.arrived <- page
}

// send sends an answer with the descriptors of a page.
func (d *Daemon) send(conn *net.UnixConn, answer string, page *shimpage.Page) {
	fd, doorbell, err := page.Descriptors()
	if err != nil {
		d.t.Error(err)
		return
	}
	defer closeBoth(fd, doorbell)
	status, err := d.Status.Descriptor()
	if err != nil {
		d.t.Error(err)
		return
	}
	defer syscall.Close(status)
	_, _, _ = conn.WriteMsgUnix([]byte(answer), syscall.UnixRights(fd, status, doorbell), nil) // the process may have exited
}

func closeBoth(a, b int) { _, _ = syscall.Close(a), syscall.Close(b) }

func (d *Daemon) renewLeases() {
	for {
		select {
		case <-d.dead:
			return
		case <-time.After(Lease / 6):
		}
		d.mu.Lock()
		for _, p := range d.pages {
			p.RenewGateLease(Lease)
			p.RenewOrdersLease(Lease)
			p.RenewQueueLease(Lease)
		}
		d.mu.Unlock()
	}
}

// Die closes all connections and leaves the pages as they are, as SIGKILL does. A second call
// does nothing.
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

// Page waits for the next process that asks for a page and returns that page.
func (d *Daemon) Page() *shimpage.Page {
	d.t.Helper()
	select {
	case p := <-d.arrived:
		return p
	case <-time.After(Timeout):
		d.t.Fatal("no process has asked for a page")
		return nil
	}
}

// Waiting returns how many pages were sent that Page has not returned yet.
func (d *Daemon) Waiting() int { return len(d.arrived) }

// HangWhile renews no lease while f runs.
func (d *Daemon) HangWhile(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// Until waits until a condition holds, and fails the test if it does not in time.
func Until(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Timeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Timeout, condition)
		}
	}
}

// Hints reads n hints from a page.
func Hints(t testing.TB, p *shimpage.Page, n int) (all []shimpage.Hint) {
	t.Helper()
	Until(t, "all hints are on the page", func() bool {
		p.Hints(func(h shimpage.Hint) { all = append(all, h) })
		return len(all) >= n
	})
	if len(all) != n {
		t.Fatalf("got %d hints, want %d: %v", len(all), n, all)
	}
	return all
}
