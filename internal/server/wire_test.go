package server

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// fullRequest has a value in every field.
func fullRequest() request {
	begin, end := int64(-5), int64(7)
	return request{
		op: opChange, pid: 4711, token: sum{1, 2, 31: 9}, values: attr.Must("class=batch weight=7 slo=5ms"), tree: true,
		begin: &begin, end: &end, policy: api.Policy{Name: "rr", Device: "0", Params: map[string]string{"quantum": "5ms", "exec": strings.Repeat("x", maxParam)}},
		record: recordQuery{after: 1 << 50, kinds: record.All, limit: api.MaxRecordLimit, last: true}, device: "GPU-a", psi: true,
		shimVersions: pageabi.Versions{Lowest: 1, Highest: 2}, shimRuntime: "cuda",
		container: api.Container{ID: "1", PodUID: "2", ContainerNames: api.ContainerNames{Name: "3", Pod: "4", Namespace: "5"}},
	}
}

func TestWire(t *testing.T) {
	v := reflect.ValueOf(fullRequest())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("this test does not fill the field %s", v.Type().Field(i).Name)
		}
	}
	for _, want := range []request{fullRequest(), {op: opStatus}, {op: opClosed}, {op: opWritten}, {op: opHint, pid: 1, values: attr.Must("priority=-3")}} {
		message := appendRequest(nil, 1<<40+3, want)
		id, got, err := parseRequest(message)
		if err != nil || id != 1<<40+3 || !reflect.DeepEqual(got, want) {
			t.Errorf("got %d %+v, %v\nwant %+v", id, got, err, want)
		}
		for n := range message {
			if _, _, err := parseRequest(message[:n]); err == nil {
				t.Errorf("%v: the first %d of %d bytes were accepted", want.op, n, len(message))
			}
		}
		if _, _, err := parseRequest(append(message, 0)); err == nil {
			t.Errorf("%v: a byte too many was accepted", want.op)
		}
	}
	for _, want := range []reply{{status: 200, body: []byte("{}")}, {status: 401, close: true, body: []byte{}}, {held: true, body: []byte{}}, {status: 200, text: true, body: []byte("x 1\n")}} {
		id, got, err := parseReply(appendReply(nil, 8, want))
		if err != nil || id != 8 || !reflect.DeepEqual(got, want) {
			t.Errorf("got %d %+v, %v; want %+v", id, got, err, want)
		}
	}
	if _, err := readMessage(bufio.NewReader(bytes.NewReader([]byte{255, 255, 255, 255})), maxMessage); err == nil {
		t.Error("a message of 4 GiB was accepted")
	}
}

// FuzzWire: a message of a front end is refused, or is one that a front end sends.
func FuzzWire(f *testing.F) {
	f.Add(appendRequest(nil, 1, fullRequest()))
	f.Add(appendRequest(nil, 1, request{op: opClosed}))
	f.Add(appendRequest(nil, 1, request{op: opHint, pid: 1, values: attr.Must("priority=-3")}))
	s := New(mute{}, Config{})
	f.Fuzz(func(t *testing.T, message []byte) {
		id, r, err := parseRequest(message)
		if err != nil {
			return
		}
		again, same, err := parseRequest(appendRequest(nil, id, r))
		if err != nil || again != id || !reflect.DeepEqual(r, same) {
			t.Fatalf("%+v is not the same after sending it: %+v, %v", r, same, err)
		}
		if r.op == opClosed || r.op == opWritten || r.check() != nil {
			return
		}
		if a := s.answer(&connection{peer: peer{local: true, uid: 1000}}, r); a.status >= 500 {
			t.Fatalf("%+v: answered %d %s", r, a.status, a.body)
		}
	})
}

// hostile is a front end process with one connection of user 1000, and the other end of its wire.
type hostile struct {
	*testing.T
	conn    net.Conn
	in      *bufio.Reader
	child   *child
	process *frontEndProcess
	gone    chan error
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	conn, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{T: t, conn: conn, in: bufio.NewReader(conn), child: &child{wire: ours, patience: time.Second}, gone: make(chan error, 1)}
	s := New(busy{}, Config{})
	s.owner = 0
	alice := &connection{Conn: ours, peer: peer{local: true, uid: 1000, account: 1000, pid: os.Getpid()}, uses: 1}
	h.process = &frontEndProcess{s: s, conns: map[uint64]*servedConn{1: {connection: alice}}}
	go func() { h.gone <- h.process.readRequests(h.child) }()
	t.Cleanup(func() { ours.Close(); conn.Close() })
	return h
}

func (h *hostile) send(id uint64, r request) {
	h.Helper()
	if _, err := h.conn.Write(frame(func(b []byte) []byte { return appendRequest(b, id, r) })); err != nil {
		h.Fatal(err)
	}
}

func (h *hostile) reply() (uint64, reply) {
	h.Helper()
	message, err := readMessage(h.in, maxReply)
	if err != nil {
		h.Fatal(err)
	}
	id, a, err := parseReply(message)
	if err != nil {
		h.Fatal(err)
	}
	return id, a
}

// TestHostileFrontEnd: a front end that a caller has taken over has the rights of the
// callers that are connected to it, and no others.
func TestHostileFrontEnd(t *testing.T) {
	h := newHostile(t)
	idle := attr.Must("class=idle")
	for _, c := range []struct {
		id     uint64
		r      request
		status int
	}{
		{1, request{op: opStatus}, 200},
		{1, request{op: opSetPolicy, policy: api.Policy{Name: "rr"}}, 403},
		{1, request{op: opRestore}, 403},
		{1, request{op: opRestore, token: sum{1}}, 403},
		{1, request{op: opChange, pid: 5, values: idle}, 200},
		{1, request{op: opChange, pid: 6, values: idle}, 403},
		{1, request{op: opChange, pid: 5, values: attr.Must("laxity=5ms")}, 400},
		{1, request{op: opChange, pid: 5}, 400},
		{1, request{op: opSetPolicy}, 400},
		{2, request{op: opStatus}, 404},
		{0, request{op: opRestore}, 404},
	} {
		h.send(c.id, c.r)
		if id, a := h.reply(); id != c.id || a.status != c.status {
			t.Errorf("%d %v: got %d of connection %d, want %d", c.id, c.r.op, a.status, id, c.status)
		}
	}
	h.send(2, request{op: opClosed}) // which is not its own
	h.send(1, request{op: opStatus})
	if _, a := h.reply(); a.status != 200 {
		t.Errorf("after closing another connection: got %d", a.status)
	}
	for name, message := range map[string][]byte{
		"garbage":         []byte("\x04\x00\x00\x00abcd"),
		"a huge message":  {255, 255, 255, 255, 1},
		"no operation":    frame(func(b []byte) []byte { return appendRequest(b, 1, request{op: 99}) }),
		"the audit's own": frame(func(b []byte) []byte { return appendRequest(b, 1, request{op: opConnect}) }),
		"a negative pid":  frame(func(b []byte) []byte { return appendRequest(b, 1, request{op: opChange, pid: -1, values: idle}) }),
		"no UTF-8":        frame(func(b []byte) []byte { return appendRequest(b, 1, request{op: opShim, shimRuntime: "\xff"}) }),
	} {
		h := newHostile(t)
		if _, err := h.conn.Write(message); err != nil {
			t.Fatal(err)
		}
		if err := <-h.gone; err == nil {
			t.Errorf("%s: the front end goes on", name)
		}
	}
}

// TestOneRequestAtATime: a front end cannot have more requests under way than there are
// connections.
func TestOneRequestAtATime(t *testing.T) {
	b := &frontEndProcess{conns: map[uint64]*servedConn{1: {}}}
	if c, err := b.begin(1); c == nil || err != nil {
		t.Fatalf("got %v, %v", c, err)
	}
	if _, err := b.begin(1); err == nil {
		t.Error("a second request at once was accepted")
	}
}
