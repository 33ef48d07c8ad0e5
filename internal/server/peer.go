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

// peer is the process at the other end of a connection.
type peer struct {
	local bool // on the unix socket, identified by the kernel
	uid   uint32
	gid   uint32
	pid   int   // in the daemon's pid namespace; zero if it is not in there
	err   error // the kernel could not identify it
	conn  net.Conn
}

// errNoPeer means that the kernel did not identify the caller.
var errNoPeer = errors.New("the kernel did not identify the caller")

// noUser is the uid of no user.
const noUser = math.MaxUint32

type peerKey struct{}

// withPeer keeps the peer of a connection in the context of its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*limitedConn); ok {
		ctx = context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// caller is the peer that made a request and what it may do.
type caller struct {
	peer
	all bool // it may do everything
}

// public returns the caller as the Node sees it.
func (c caller) public() Caller { return Caller{UID: c.uid, GID: c.gid, PID: c.pid, All: c.all} }

// identify returns the caller of a request.
func (s *Server) identify(r *http.Request) (caller, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	switch {
	case !ok:
		return caller{}, Forbidden("%w", errNoPeer)
	case p.err != nil:
		return caller{}, Forbidden("%w", p.err)
	case p.local:
		return caller{p, p.uid == 0 || p.uid == s.owner}, nil
	case s.token.matches(r.Header.Get("Authorization")):
		return caller{p, true}, nil
	}
	return caller{}, errNoToken
}

var errNoToken = errors.New("over TCP every request needs the header \"Authorization: Bearer TOKEN\" with the daemon's token")

// token is a secret. Its hash is kept, so that a comparison takes the same time for
// every length.
type token struct{ sum [sha256.Size]byte }

const (
	minToken = 16
	maxToken = 4096
)

func newToken(data []byte, path string) (*token, error) {
	text := strings.TrimSpace(string(data))
	if len(text) < minToken {
		return nil, fmt.Errorf("read the token: the token in %s is shorter than %d characters; make one with: openssl rand -hex 32", path, minToken)
	}
	return &token{sha256.Sum256([]byte(text))}, nil
}

func (t *token) matches(header string) bool {
	scheme, given, _ := strings.Cut(header, " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	same := t != nil && subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1
	return same && strings.EqualFold(scheme, "Bearer")
}

// Limits on open connections: of one user, most of which are runs, and of all callers
// over TCP. Root has no limit.
const (
	maxOfUser = 512
	maxTCP    = 64
)

// limited is a listener that identifies callers and limits how many connections each
// user has open, so that one user cannot use up the daemon's descriptors.
type limited struct {
	net.Listener
	local bool

	mu   sync.Mutex
	open map[uint32]int // by user
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := peer{local: l.local, conn: c}
		limit := maxTCP
		if l.local {
			p.uid, p.gid, p.pid, p.err = peerOf(c)
			limit = maxOfUser
		}
		if l.enter(p.uid, limit) {
			return &limitedConn{Conn: c, peer: p, from: l}, nil
		}
		c.Close()
	}
}

func (l *limited) enter(uid uint32, limit int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid] >= limit && !(l.local && uid == 0) {
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
