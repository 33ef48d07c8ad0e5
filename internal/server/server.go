// Package server is the daemon's control socket: HTTP with JSON, as package api
// has it, over a unix socket and, where asked for, TCP.
//
// It decides who may ask for what, and nothing else: what a request means is for
// the Node. Whoever is on the other end of the unix socket is known from the
// kernel (SO_PEERCRED). Root and the daemon's own user may all; every other user
// may change its own processes, and sees of others' who uses which device, how and
// as what. Over TCP, whoever has the token may all.
//
// Requests are hostile input: bodies, headers, connections and waiting times are
// bounded, and unknown fields refused.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
)

// Node is what the requests are about: the daemon. Its methods are called from
// many goroutines at once. An error is answered with status 500 unless it wraps
// one of those below.
type Node interface {
	// Processes lists the programs on the devices, in order of pid.
	Processes() []api.Process
	// Change asks for something else for a process. The caller's right to it has
	// been looked at, by the user that Processes or, for a process that is not
	// there, /proc has for the pid.
	Change(pid int, c api.Change) (api.Process, error)
	// Hint takes in what is said of a process, as h.Check lets it.
	Hint(pid int, h api.Hint) (api.Process, error)
	Policy() api.Policy
	SetPolicy(api.Policy) (api.Policy, error)
	Status() api.Status
	// Restore puts everything back as the vendor has it.
	Restore() error
	// BeginRun gives a process, and all that descend from it, the attributes of
	// c until end is called, which is once.
	BeginRun(pid int, c api.Change) (end func(), err error)
}

// Visitor is a program that came with the shim, as the kernel knows it.
type Visitor struct {
	PID     int
	UID     uint32
	Runtime string // what it says it uses: any text
}

// PageHost shares a page with each process that loaded the shim.
type PageHost interface {
	// Admit makes room for a visitor. The descriptors, of the page, the board and
	// the bell, are the caller's to send and to close. leave is called once, when
	// the visitor has gone.
	Admit(Visitor) (fds [3]int, leave func(), err error)
}

// What a Node's errors may wrap, to be answered with a status of their own.
var (
	ErrBadRequest = errors.New("bad request")   // 400: it makes no sense
	ErrForbidden  = errors.New("not permitted") // 403: not yours
	ErrNotFound   = errors.New("not found")     // 404: no such process
	ErrConflict   = errors.New("not possible")  // 409: not possible here
)

// DefaultTCP is where to listen where TCP is asked for without an address.
const DefaultTCP = "127.0.0.1:50000"

// Config says where to listen.
type Config struct {
	Socket    string       // path of the unix socket; empty: none
	TCP       string       // host:port; empty: none
	TokenFile string       // holds the token that TCP asks for
	Pages     PageHost     // nil: no process gets a page
	Log       *slog.Logger // nil: none
}

// Server answers requests about a Node.
type Server struct {
	node  Node
	cfg   Config
	log   *slog.Logger
	owner uint32 // the daemon's own user
	token *token

	listeners []net.Listener
	lock      *os.File
	runs      sync.WaitGroup
}

// New returns a server that does not listen yet.
func New(node Node, cfg Config) *Server {
	s := &Server{node: node, cfg: cfg, log: cfg.Log, owner: uint32(os.Geteuid())}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Listen opens the sockets. When it returns nil, clients can connect; they are
// answered once Serve runs. A server listens once.
func (s *Server) Listen() (err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.cfg.Socket == "" && s.cfg.TCP == "" {
		return errors.New("listen: neither a socket nor a TCP address is given")
	}
	if s.cfg.TCP != "" {
		if s.cfg.TokenFile == "" {
			return errors.New("listen on TCP: a file with a token is needed, or anybody could give orders (token_file)")
		}
		if s.token, err = readToken(s.cfg.TokenFile); err != nil {
			return err
		}
		l, err := net.Listen("tcp", s.cfg.TCP)
		if err != nil {
			return fmt.Errorf("listen on TCP: %w", err)
		}
		s.listeners = append(s.listeners, limit(l, false))
		if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			s.log.Warn("the token and all else goes over the network in clear: put TLS in front", "tcp", l.Addr().String())
		}
	}
	if s.cfg.Socket != "" {
		l, lock, err := listenUnix(s.cfg.Socket)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", s.cfg.Socket, err)
		}
		s.lock = lock
		s.listeners = append(s.listeners, limit(l, true))
	}
	return nil
}

// Addrs are the addresses listened on, TCP first.
func (s *Server) Addrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range s.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// How long things may take. A run is exempt: it lasts as long as its program.
const (
	headerTime   = 5 * time.Second
	requestTime  = 10 * time.Second
	answerTime   = 30 * time.Second
	idleTime     = 2 * time.Minute
	shutdownTime = 3 * time.Second
	mostHeader   = 16 << 10
)

// Serve answers requests until ctx is done, having called Listen if nobody has.
// When it returns, every run has ended and the socket is gone.
func (s *Server) Serve(ctx context.Context) error {
	if s.listeners == nil {
		if err := s.Listen(); err != nil {
			return err
		}
	}
	defer s.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the runs
		ConnContext:       withPeer,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    mostHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { failed <- srv.Serve(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	cancel()
	done, stop := context.WithTimeout(context.Background(), shutdownTime)
	defer stop()
	if srv.Shutdown(done) != nil {
		srv.Close()
	}
	s.runs.Wait()
	return err
}

func (s *Server) close() {
	for _, l := range s.listeners {
		l.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
