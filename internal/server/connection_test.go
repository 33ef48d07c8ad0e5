package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// acceptedPair returns a connection of a listener and the caller's end of it.
func acceptedPair(t *testing.T, listener net.Listener) (c *connection, caller net.Conn) {
	t.Helper()
	caller, err := net.Dial(listener.Addr().Network(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { caller.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return accepted.(*connection), caller
}

func listenTCP(t *testing.T) *tcpListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &tcpListener{Listener: l}
}

// TestEvictedConnectionEnds: a connection over TCP that has to leave ends for its client,
// although the front end has a descriptor of it too.
func TestEvictedConnectionEnds(t *testing.T) {
	listener := listenTCP(t)
	first, client := acceptedPair(t, listener)
	copied, err := first.Conn.(*net.TCPConn).File() // as the front end has one
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	for range maxWaitingAddress {
		acceptedPair(t, listener)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the evicted client read %v, want the end of the connection", err)
	}
}

// TestEvictedConnectionTakesNoPlace: a connection is evicted after its request was read and before its
// token is looked at. It takes no place of clients with a token, so that these are still admitted.
func TestEvictedConnectionTakesNoPlace(t *testing.T) {
	s, listener := tokenServer(busy{}), listenTCP(t)
	ask := func(c *connection) reply { return s.answer(c, request{op: opPolicy, token: s.token.sum}) }
	for range maxTCP {
		c, _ := acceptedPair(t, listener)
		c.shutDown() // as Accept does when it evicts
		if a := ask(c); a.status != statusOf(errClosed) {
			t.Fatalf("the evicted connection: got %d: %s", a.status, a.body)
		}
	}
	c, _ := acceptedPair(t, listener)
	for _, when := range []string{"at first", "again"} {
		if a := ask(c); a.status != http.StatusOK {
			t.Errorf("a client with the token, %s: got %d: %s", when, a.status, a.body)
		}
	}
}

// TestEvictedConnectionIsForgotten: a front end process keeps nothing of a connection that was
// evicted before it was passed on, because the front end never reports its end.
func TestEvictedConnectionIsForgotten(t *testing.T) {
	listener := listenTCP(t)
	c, _ := acceptedPair(t, listener)
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	b := &frontEndProcess{conns: map[uint64]*servedConn{}}
	c.shutDown()
	if err := b.pass(&child{conns: ours, patience: time.Second}, c); err != nil {
		t.Fatal(err)
	}
	if len(b.conns) != 0 {
		t.Error("the front end process keeps the closed connection")
	}
	c, _ = acceptedPair(t, listener)
	if err := b.pass(&child{conns: ours, patience: time.Second}, c); err != nil || len(b.conns) != 1 {
		t.Errorf("the next connection: %v, and %d are kept", err, len(b.conns))
	}
}

// TestConnectionLeavesOnce: a connection is counted until its last use ends, whichever of
// front end and daemon ends first.
func TestConnectionLeavesOnce(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range 2000 {
		dialed, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var left atomic.Int32
		c := &connection{Conn: accepted, uses: 1, leave: func() { left.Add(1) }}
		var both sync.WaitGroup
		both.Go(func() { c.Close() })
		both.Go(func() {
			if own, err := c.hold(); err == nil {
				runtime.Gosched()
				own.Close()
				c.release()
			}
		})
		both.Wait()
		dialed.Close()
		if n := left.Load(); n != 1 {
			t.Fatalf("connection %d left %d times", i, n)
		}
	}
}

// TestFrontEndThatReadsNothing: a front end that sends requests without end and takes no
// reply is given up, and until then takes a bounded number of goroutines.
func TestFrontEndThatReadsNothing(t *testing.T) {
	h := newHostile(t)
	before := runtime.NumGoroutine()
	stop := time.AfterFunc(60*time.Second, func() { h.conn.Close() })
	defer stop.Stop()
	message := frame(func(b []byte) []byte { return appendRequest(b, 99, request{op: opStatus}) })
	most := 0
	for {
		if _, err := h.conn.Write(message); err != nil {
			break
		}
		if most = max(most, runtime.NumGoroutine()-before); most > 1000 {
			t.Fatalf("the front end has %d goroutines of the daemon", most)
		}
	}
	if !stop.Stop() {
		t.Fatal("the front end is served for ever")
	}
	<-h.gone
}

// TestLaterMessagesGrantNoMoreTime: a front end has its time for each message from when the
// message is written, however many others wait behind it.
func TestLaterMessagesGrantNoMoreTime(t *testing.T) {
	h := newHostile(t)
	large := reply{body: make([]byte, 1<<20)} // more than the socket holds
	end := time.After(30 * h.child.patience)
	for {
		go h.child.send(1, large)
		select {
		case <-h.gone:
			return
		case <-end:
			t.Fatal("a front end that takes no message is kept as long as there are new ones")
		case <-time.After(h.child.patience / 5):
		}
	}
}

// fullListener is a listener without descriptors for a while, then with one connection, then
// without descriptors again, and then closed.
type fullListener struct {
	net.Listener
	calls int
}

func (d *fullListener) Accept() (net.Conn, error) {
	d.calls++
	switch d.calls {
	case 4:
		return &connection{}, nil
	case 8:
		return nil, net.ErrClosed
	}
	return nil, unix.EMFILE
}

// TestAcceptFailures: the server goes on accepting after failures, and logs each series of
// them once.
func TestAcceptFailures(t *testing.T) {
	var log bytes.Buffer
	s := New(busy{}, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	taken := 0
	if err := s.acceptAll(&fullListener{}, func(*connection) { taken++ }); !errors.Is(err, net.ErrClosed) || taken != 1 {
		t.Errorf("got %v and %d connections, want the end of the listener and 1", err, taken)
	}
	if n := strings.Count(log.String(), "no connection can be accepted"); n != 2 {
		t.Errorf("%d lines are logged, want 2:\n%s", n, log.String())
	}
}

// TestConnectionWithoutDescriptor: when the front end has no descriptor left for a connection,
// it reports that connection as closed and goes on with the next one.
func TestConnectionWithoutDescriptor(t *testing.T) {
	conns, theirConns, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	stream, theirStream, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	defer theirStream.Close()
	front, err := net.FileConn(theirConns)
	theirConns.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	for id, rights := range [][]byte{1: nil, 2: unix.UnixRights(int(theirStream.Fd()))} {
		if id == 0 {
			continue
		}
		if _, _, err := conns.WriteMsgUnix(binary.LittleEndian.AppendUint64(nil, uint64(id)), rights, nil); err != nil {
			t.Fatal(err)
		}
	}
	h := newHostile(t)
	p := &passed{front.(*net.UnixConn), &wire{conn: h.conn.(*net.UnixConn)}}
	c, err := p.Accept()
	if err != nil {
		t.Fatalf("the front end ends: %v", err)
	}
	defer c.Close()
	if id := c.(*passedConn).id; id != 2 {
		t.Errorf("got connection %d, want the one with a descriptor", id)
	}
	eventuallyClosed(t, h, 1)
}

// eventuallyClosed waits until the daemon has forgotten a connection.
func eventuallyClosed(t *testing.T, h *hostile, id uint64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		h.process.mu.Lock()
		_, known := h.process.conns[id]
		h.process.mu.Unlock()
		if !known {
			return
		}
	}
	t.Errorf("connection %d is not reported as closed", id)
}
