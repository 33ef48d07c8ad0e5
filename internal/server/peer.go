package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
)

// peer is who is on the other end of a connection.
type peer struct {
	local bool // on the unix socket, known from the kernel
	uid   uint32
	pid   int   // in our pid namespace; zero where it is not in there
	err   error // the kernel did not say
	conn  net.Conn
}

// errNoPeer is where the kernel cannot tell who is on the other end.
var errNoPeer = errors.New("who is calling cannot be told on this system")

const nobody = math.MaxUint32

type peerKey struct{}

// withPeer keeps the peer of a connection in the context of its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*limitedConn); ok {
		ctx = context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// caller is what one request may do.
type caller struct {
	peer
	all bool // everything
}

// who finds out who makes a request.
func (s *Server) who(r *http.Request) (caller, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	switch {
	case !ok:
		return caller{}, fmt.Errorf("%w: %w", ErrForbidden, errNoPeer)
	case p.err != nil:
		return caller{}, fmt.Errorf("%w: %w", ErrForbidden, p.err)
	case p.local:
		return caller{p, p.uid == 0 || p.uid == s.owner}, nil
	case s.token.matches(r.Header.Get("Authorization")):
		return caller{p, true}, nil
	}
	return caller{}, errNoToken
}

var errNoToken = errors.New("over TCP every request needs a header \"Authorization: Bearer TOKEN\" with the daemon's token")

// token is a secret, kept as its hash so that comparing takes the same time
// whatever its length.
type token struct{ sum [sha256.Size]byte }

const (
	leastToken = 16
	mostToken  = 4096
)

func newToken(data []byte, path string) (*token, error) {
	text := strings.TrimSpace(string(data))
	if len(text) < leastToken {
		return nil, fmt.Errorf("read the token: the one in %s is shorter than %d characters; make one with: openssl rand -hex 32", path, leastToken)
	}
	return &token{sha256.Sum256([]byte(text))}, nil
}

func (t *token) matches(header string) bool {
	scheme, given, _ := strings.Cut(header, " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	same := t != nil && subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1
	return same && strings.EqualFold(scheme, "Bearer")
}

// How many connections may be open at a time: of one user, most of which are
// runs, and all of those over TCP. Root may have any number.
const (
	mostOfUser = 512
	mostTCP    = 64
)

// limited is a listener that knows who connects, and lets nobody have so many
// connections that there are no descriptors left for others.
type limited struct {
	net.Listener
	local bool

	mu   sync.Mutex
	open map[uint32]int // by user
}

func limit(l net.Listener, local bool) net.Listener {
	return &limited{Listener: l, local: local, open: map[uint32]int{}}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := peer{local: l.local, conn: c}
		most := mostTCP
		if l.local {
			p.uid, p.pid, p.err = peerOf(c)
			most = mostOfUser
		}
		if l.enter(p.uid, most) {
			return &limitedConn{Conn: c, peer: p, from: l}, nil
		}
		c.Close()
	}
}

func (l *limited) enter(uid uint32, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid] >= most && !(l.local && uid == 0) {
		return false
	}
	l.open[uid]++
	return true
}

func (l *limited) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid]--; l.open[uid] == 0 {
		delete(l.open, uid)
	}
}

type limitedConn struct {
	net.Conn
	peer peer
	from *limited
	once sync.Once
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { c.from.leave(c.peer.uid) })
	return c.Conn.Close()
}
