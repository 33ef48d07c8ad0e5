package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/quota"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/userdb"
)

func TestSubuid(t *testing.T) {
	users := map[string]uint32{"alice": 1000, "root": 0, "1001": 1001}
	got := parseSubuid(`# comment
alice:100000:65536
1001:165536:65536

root:300000:65536
ldapuser:400000:10
ldapuser:500000:10
alice:600000
alice:-1:5
alice:99999999999:5
:1:5
alice:700000:1
`, func(name string) (uint32, bool) { uid, ok := users[name]; return uid, ok })
	want := []uidRange{{100000, 65536, 1000}, {165536, 65536, 1001}, {400000, 10, 400000}, {500000, 10, 400000}, {700000, 1, 1000}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	path := filepath.Join(t.TempDir(), "subuid")
	a := &accounts{path: path}
	check := func(uid, want uint32) {
		t.Helper()
		a.looked = time.Time{} // look again
		if got := a.of(uid); got != want {
			t.Errorf("uid %d counts for %d, want %d", uid, got, want)
		}
	}
	check(100000, 100000)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("1000:100000:10\n1001:4294967290:65536\n1002:0:10\n")
	check(99999, 99999)
	check(100000, 1000)
	check(100009, 1000)
	check(100010, 100010)
	check(4294967294, 1001)
	check(0, 0) // root is root, whatever the file says
	write("1007:100000:1000\n")
	check(100010, 1007)
	os.Remove(path)
	check(100010, 100010)
}

// TestSubuidOfADirectoryUser: subordinate uids count for a user that only a directory has. While the
// directory does not answer, what it said before holds, and only one caller waits for it.
func TestSubuidOfADirectoryUser(t *testing.T) {
	dir := t.TempDir()
	getent, path := filepath.Join(dir, "getent"), filepath.Join(dir, "subuid")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(getent, "#!/bin/sh\n[ $1 = passwd ] && echo 'lena:*:70001:70001:::'\n")
	write(path, "lena:100000:10\n")
	a := &accounts{path: path, db: &userdb.DB{Programs: []string{getent}, Deadline: 500 * time.Millisecond}}
	if got := a.of(100005); got != 70001 {
		t.Fatalf("uid 100005 counts for %d, want 70001", got)
	}
	write(getent, "#!/bin/sh\nsleep 600\n")
	write(path, "lena:100000:10\nlena:200000:10\n")
	a.looked = time.Now().Add(-time.Hour)
	var waited atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			began := time.Now()
			if got := a.of(100005); got != 70001 {
				t.Errorf("while the directory hangs: uid 100005 counts for %d, want 70001", got)
			}
			if time.Since(began) > 250*time.Millisecond {
				waited.Add(1)
			}
		})
	}
	callers.Wait()
	if n := waited.Load(); n != 1 {
		t.Errorf("%d of 8 callers waited for the directory, want 1", n)
	}
}

func TestBuckets(t *testing.T) {
	b := newBuckets(10, 20)
	now := time.Unix(1000, 0)
	spend := func(account uint32, cost float64) (time.Duration, bool) { return b.spend(account, cost, 10, now) }
	if wait, ok := spend(1, 20); wait != 0 || !ok {
		t.Errorf("a full bucket: wait %v, %v", wait, ok)
	}
	if wait, ok := spend(1, 5); wait != 500*time.Millisecond || !ok {
		t.Errorf("an empty bucket: wait %v, %v; want 500ms", wait, ok)
	}
	if _, ok := spend(1, 6); ok {
		t.Error("more than the debt was lent")
	}
	if wait, ok := spend(2, 5); wait != 0 || !ok {
		t.Errorf("another account: wait %v, %v", wait, ok)
	}
	now = now.Add(time.Second)
	if wait, ok := spend(1, 5); wait != 0 || !ok {
		t.Errorf("after a second: wait %v, %v", wait, ok)
	}
	for account := range uint32(3 * maxBuckets) {
		now = now.Add(time.Millisecond)
		spend(account, 1)
	}
	if len(b.of) > maxBuckets {
		t.Errorf("%d buckets are kept, want at most %d", len(b.of), maxBuckets)
	}
}

// TestRequestsAreLimited: a user that makes requests without end is slowed down and then
// refused and disconnected, and other users and root are not.
func TestRequestsAreLimited(t *testing.T) {
	s := New(mute{}, Config{})
	s.owner = 0
	of := func(uid uint32) *connection {
		return &connection{peer: peer{local: true, uid: uid, account: uid}}
	}
	s.budgets.of[1000] = &bucket{tokens: -budgetRate + 1, at: time.Now().Add(time.Hour)} // and it does not fill
	if a := s.answer(of(1000), request{op: opStatus}); a.status != 429 || !a.close {
		t.Errorf("over the limit: got %d, closed %v; want 429 and the end of the connection", a.status, a.close)
	}
	if a := s.answer(of(1001), request{op: opStatus}); a.status != 200 {
		t.Errorf("another user: got %d", a.status)
	}
	for range int(budgetBurst) {
		if a := s.answer(of(0), request{op: opStatus}); a.status != 200 {
			t.Fatalf("root: got %d", a.status)
		}
	}
}

func TestAdmission(t *testing.T) {
	a := &admission{quota: quota.Quota{All: 8, Each: 2}, open: map[uint32]int{}}
	for range 2 {
		if !a.enter(7) {
			t.Fatal("a connection was refused below the limit")
		}
	}
	if a.enter(7) {
		t.Error("an account has more than its limit")
	}
	for account := range uint32(6) {
		if !a.enter(account + 20) {
			t.Error("an account without connections got none")
		}
	}
	if a.enter(10) {
		t.Error("the limit of all accounts is not 8")
	}
	a.leave(7)
	if !a.enter(10) {
		t.Error("a closed connection still counts")
	}
}

// TestFloodFromManyAddresses: connections without a token, from several addresses, do not close that of a
// client before its token is read.
func TestFloodFromManyAddresses(t *testing.T) {
	r := &tcpConnections{}
	admin := &connection{peer: peer{address: "admin"}}
	r.enter(admin)
	for i := range 1000 {
		r.enter(&connection{peer: peer{address: fmt.Sprint(i % 20)}})
	}
	if err := r.admit(admin, false); err != nil {
		t.Errorf("the connection of the client was closed: %v", err)
	}
}

func TestWaitingRoom(t *testing.T) {
	r := &tcpConnections{}
	at := func(address string) *connection { return &connection{peer: peer{address: address}} }
	first := at("a")
	if r.enter(first) != nil {
		t.Error("the first connection evicts another")
	}
	var own *connection
	for i := range maxWaitingAddress {
		c := at("b")
		if i == 0 {
			own = c
		}
		r.enter(c)
	}
	if got := r.enter(at("b")); got != own {
		t.Error("an address with too many connections does not lose its oldest one")
	}
	admit := func(address string, reads bool) error {
		c := at(address)
		r.enter(c)
		return r.admit(c, reads)
	}
	admitted := at("c")
	r.enter(admitted)
	for _, when := range []string{"at first", "again"} {
		if err := r.admit(admitted, false); err != nil {
			t.Errorf("%s: a client with the token is not admitted: %v", when, err)
		}
	}
	for i := len(r.waiting); i < maxWaiting; i++ {
		r.enter(at(fmt.Sprint(i)))
	}
	evicted := r.enter(at("d"))
	if evicted == nil || evicted.address != "b" {
		t.Errorf("a full list loses %+v, want the oldest connection of the address that has most", evicted)
	}
	for i := range maxTCP - 1 {
		reads := i < maxTCPReaders
		if err := admit("e", reads); err != nil {
			t.Fatalf("fewer clients are admitted than the limit: %v", err)
		}
		if reads && i == maxTCPReaders-1 && admit("e", true) == nil {
			t.Error("more readers are admitted than the limit")
		}
	}
	if admit("f", false) == nil {
		t.Error("more clients are admitted than the limit")
	}
	r.leave(admitted)
	if err := admit("f", false); err != nil {
		t.Errorf("a client that left still counts: %v", err)
	}
	if r.admit(admitted, false) == nil || r.admit(evicted, false) == nil {
		t.Error("a connection that left or was evicted takes a place again")
	}
}

func TestAddressOf(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:5":            "192.0.2.1",
		"[::ffff:192.0.2.1]:5":   "192.0.2.1",
		"[2001:db8:1:2:3::4]:5":  "2001:db8:1:2::/64",
		"[2001:db8:1:2:9::99]:7": "2001:db8:1:2::/64",
		"[::1]:5":                "::1",
	} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := addressOf(fromAddr{addr: a}); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

// fromAddr is a connection of which only the address is used.
type fromAddr struct {
	net.Conn
	addr net.Addr
}

func (f fromAddr) RemoteAddr() net.Addr { return f.addr }

// TestAudit: every order and every refusal is one line, whatever a user puts in it, and a
// user has a limited number of lines.
func TestAudit(t *testing.T) {
	var log bytes.Buffer
	s := New(busy{}, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	s.owner = 0
	alice := &connection{peer: peer{local: true, uid: 1000, account: 1000, pid: os.Getpid()}}
	root := &connection{peer: peer{local: true}}
	remote := &connection{peer: peer{address: "192.0.2.1", account: noUser}}
	idle := attr.Must("class=idle weight=3")
	for _, c := range []struct {
		by   *connection
		r    request
		want string
	}{
		{alice, request{op: opChange, pid: 5, values: idle}, `level=INFO msg="order carried out" order=set uid=1000 pid=PID command=server.test process=5 from="class=batch weight=1" to="class=idle weight=3"`},
		{alice, request{op: opChange, pid: 5, tree: true, values: attr.Must("paused=true")}, `process=5 tree=true from="paused=false" to="paused=true"`},
		{alice, request{op: opChange, pid: 6, values: idle}, `level=WARN msg="order refused" order=set uid=1000 pid=PID command=server.test process=6 from="" to="class=idle weight=3" status=403 reason="process 6 belongs to another user: only its owner and root may change it"`},
		{alice, request{op: opHint, pid: 6, values: idle}, `msg="order refused" order=hint`},
		{alice, request{op: opHint, pid: 5, values: idle}, ""},
		{alice, request{op: opStatus}, ""},
		{alice, request{op: opProcesses}, ""},
		{alice, request{op: opSetPolicy, policy: api.Policy{Name: "rr\nlevel=INFO \x1b[31m\u202e", Params: map[string]string{"b": "2", "a": "1"}}}, `msg="order refused" order=policy uid=1000 pid=PID command=server.test from="" to="rr\\nlevel=INFO \\x1b[31m\\u202e:a=1,b=2" status=403`},
		{root, request{op: opSetPolicy, policy: api.Policy{Name: "rr", Device: "0"}}, `msg="order carried out" order=policy uid=0 pid=0 command="" from="" to="rr on device 0"`},
		{root, request{op: opRestore}, `msg="order carried out" order=restore`},
		{alice, request{op: opRestore}, `msg="order refused" order=restore`},
		{alice, request{op: opRun, values: idle}, `order=run uid=1000`},
		{remote, request{op: opStatus}, `msg="order refused" order=status address=192.0.2.1 from="" to="" status=401`},
	} {
		log.Reset()
		s.answer(c.by, c.r)
		got := strings.ReplaceAll(log.String(), fmt.Sprint("pid=", os.Getpid()), "pid=PID")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%v:\ngot  %s\nwant %s", c.r.op, got, c.want)
		}
	}
	log.Reset()
	for i := range 3 * int(refusalLineBurst) {
		s.audit(caller{peer: alice.peer}, request{op: opRestore}, outcome{}, Forbidden("no %d", i))
	}
	if n := strings.Count(log.String(), "\n"); n > 2*int(refusalLineBurst) {
		t.Errorf("a user wrote %d lines, want at most about %v", n, refusalLineBurst)
	}
	s.auditor.refusals.of[1000].tokens = 1
	log.Reset()
	s.audit(caller{peer: alice.peer}, request{op: opRestore}, outcome{}, errors.New("x"))
	if !strings.Contains(log.String(), "lines_left_out=") {
		t.Errorf("the lines that were left out are not counted: %s", &log)
	}
	s.end() // and no line about repeated refusals
}

// TestRunOutlivesTheFrontEnd: the daemon keeps a run when the front end closes its end of
// the connection, and ends it when the caller does.
func TestRunOutlivesTheFrontEnd(t *testing.T) {
	s := New(mute{}, Config{})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	c := &connection{Conn: accepted, peer: peer{local: true, uid: uint32(os.Getuid()), pid: os.Getpid()}, uses: 1, leave: func() { close(left) }}
	if a := s.answer(c, request{op: opRun, values: attr.Must("class=batch")}); !a.held {
		t.Fatalf("the run was not begun: %d %s", a.status, a.body)
	}
	c.Close()
	text := make([]byte, 1000)
	n, err := own.Read(text)
	if err != nil || !strings.HasPrefix(string(text[:n]), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("the caller got %q, %v", text[:n], err)
	}
	if _, err := own.Write([]byte("more")); err != nil { // which ends nothing
		t.Error(err)
	}
	select {
	case <-left:
		t.Error("the run ended before the caller closed its end")
	case <-time.After(50 * time.Millisecond):
	}
	own.Close()
	<-left
	s.runs.Wait()
	s.endRuns()
	if a := s.answer(c, request{op: opRun, values: attr.Must("class=batch")}); a.status != 409 {
		t.Errorf("a run at the end of the server: got %d", a.status)
	}
}

// sink is a connection that keeps what is written to it.
type sink struct {
	net.Conn
	text bytes.Buffer
}

func (*sink) SyscallConn() (syscall.RawConn, error) { return nil, errNoPeer }

func (s *sink) Write(b []byte) (int, error)    { return s.text.Write(b) }
func (*sink) SetWriteDeadline(time.Time) error { return nil }

// TestStreamPaysForTheRecord: a stream gives an account no more of the record than it has
// tokens for.
func TestStreamPaysForTheRecord(t *testing.T) {
	n := rooted{rec: record.New(muteBegan, 0)}
	s := New(n, Config{})
	for range 10 {
		n.rec.Add(&record.Entry{Kind: record.Span, PID: 5})
	}
	s.budgets.of[1000] = &bucket{tokens: -budgetRate, at: time.Now().Add(time.Hour)} // and it does not fill
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var conn sink
	s.stream(ctx, &conn, caller{peer: peer{local: true, uid: 1000, account: 1000}}, recordQuery{kinds: record.All, limit: 1})
	if got := strings.Count(conn.text.String(), "\nid: "); got != 1 || ctx.Err() != nil {
		t.Errorf("got %d events for one request, %v:\n%s", got, ctx.Err(), &conn.text)
	}
}

// TestStreamsOfReaders: streams with the token for reading take none from root.
func TestStreamsOfReaders(t *testing.T) {
	s := New(mute{}, Config{})
	reader, root := caller{peer: peer{account: noUser}, reads: true}, caller{peer: peer{local: true}, all: true}
	enter := func(by caller, most int) {
		t.Helper()
		for i := range most + 1 {
			if _, err := s.streams.enter(by); (err != nil) != (i == most) {
				t.Errorf("stream %d of %d: got %v", i, most, err)
			}
		}
	}
	enter(reader, streamQuota.Each)
	enter(root, maxStreams)
}

// TestRefusedConnectionsAffectNoUser: a refused connection is recorded as one that affects its
// caller only, not root.
func TestRefusedConnectionsAffectNoUser(t *testing.T) {
	n := rooted{rec: record.New(muteBegan, 0)}
	s := New(n, Config{})
	s.admission.quota = quota.Quota{}
	mine, other := net.Pipe()
	defer mine.Close()
	defer other.Close()
	if s.admitLocal(mine) != nil {
		t.Fatal("the connection was admitted")
	}
	confined := caller{peer: peer{local: true, uid: 0, account: 0}}
	hidden := 0
	n.rec.AppendRecord(nil, confined.query(recordQuery{kinds: record.All, limit: 10}), func(e *record.Entry) bool {
		if confined.hides(e) {
			hidden++
		}
		return false
	})
	if hidden != 1 {
		t.Errorf("%d entries are hidden from root of a container, want 1", hidden)
	}
}
