package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"math"
	"strings"
)

// peer is the process at the other end of a connection.
type peer struct {
	local   bool // on the unix socket, identified by the kernel
	uid     uint32
	gid     uint32
	pid     int    // in the daemon's pid namespace; zero if it is not in there
	err     error  // the kernel could not identify it
	address string // over TCP
	// account is the user that connections, pages and requests count for: the owner of
	// uid, where uid is one of a user's subordinate uids.
	account uint32
	// confined says why a process of root or of the daemon's user has not that user's
	// rights; empty: it has.
	confined string
	// containers are those that it is in, as proc.Process.Containers has them; empty: none, or
	// containers cannot be registered.
	containers string
	agent      bool // on the agent's socket
}

// errNoPeer means that the kernel did not identify the caller.
var errNoPeer = errors.New("the kernel did not identify the caller")

// noUser is the uid of no user.
const noUser = math.MaxUint32

// caller is the peer that made a request and what it may do.
type caller struct {
	peer
	all bool // it may do everything
	// reads: it has the token for reading. It may change nothing, and sees what a user without
	// processes sees, and all metrics.
	reads bool
	pod   string // identifies the pod of the registered container that it is in; empty: none
}

// public returns the caller as the Node sees it.
func (c caller) public() Caller {
	return Caller{UID: c.uid, GID: c.gid, PID: c.pid, All: c.all, Account: c.account, Pod: c.pod}
}

// manages reports whether a peer on the unix socket may do everything.
func (s *Server) manages(p peer) bool {
	return p.local && !p.agent && p.err == nil && p.confined == "" && (p.uid == 0 || p.uid == s.owner)
}

// identify returns the caller of a request that came with a token's hash.
func (s *Server) identify(c *connection, given sum) (caller, error) {
	switch {
	case c == nil:
		return caller{}, Forbidden("%w", errNoPeer)
	case c.err != nil:
		return caller{peer: c.peer}, Forbidden("%w", c.err)
	case c.local:
		by := caller{peer: c.peer, all: s.manages(c.peer)}
		if !by.all {
			by.pod, _ = s.podOf(c.containers)
		}
		return by, nil
	}
	by := caller{peer: c.peer, all: s.token.matches(given), reads: s.read.matches(given)}
	if !by.all {
		by.uid, by.gid = noUser, noUser
	}
	if !by.all && !by.reads {
		return by, errNoToken
	}
	if c.tcp != nil {
		return by, c.tcp.admit(c, !by.all)
	}
	return by, nil
}

// mayAsk says why the caller may not make requests of a kind.
func (c caller) mayAsk(op operation) error {
	if c.reads && !c.all && !operations[op].reads {
		return Forbidden("%v: the token is for reading only; use the token of token_file, or the daemon's unix socket", op)
	}
	if c.agent && !operations[op].agent {
		return Forbidden("%v: on this socket containers are registered, and nothing else", op)
	}
	if c.pod != "" && !operations[op].pods {
		return Forbidden("%v: a process in a pod sees and changes the processes of its pod only", op)
	}
	return nil
}

var errNoToken = errors.New("over TCP every request needs the header \"Authorization: Bearer TOKEN\" with the daemon's token")

// token is a secret, of which only the hash is kept.
type token struct{ sum sum }

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

func (t *token) matches(given sum) bool {
	return t != nil && subtle.ConstantTimeCompare(given[:], t.sum[:]) == 1
}
