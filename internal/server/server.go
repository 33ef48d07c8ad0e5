// Package server is the daemon's control socket: HTTP with JSON, as package api defines
// it, over a unix socket and, if configured, TCP.
//
// It decides which caller may do what; the Node does the rest. The kernel identifies a
// caller on the unix socket (SO_PEERCRED). Root and the daemon's own user may do
// everything. Other users may change their own processes, and see the pid, user, class
// and queues of others'. Over TCP a caller with the token may do everything, and one with
// the token for reading sees what any user sees, and all metrics.
//
// It has two parts. The front end (routes.go) parses HTTP and JSON into a request, which is
// plain data, and decides nothing. The authority (authority.go) knows the caller of each
// connection from the kernel, decides, and calls the Node.
//
// Requests are hostile input: bodies, headers, connections, rates and waiting times are
// bounded, and unknown fields are refused.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Node is the daemon as the server uses it. Its methods are called from many goroutines at
// once. An error is answered with status 500, or with another status if it
// comes from BadRequest, Forbidden, NotFound, Conflict or TooMany.
type Node interface {
	// Processes lists the processes on the devices, in order of pid.
	Processes() []api.Process
	// Process returns one of those processes without its queues, in a time that does not depend on
	// how many there are.
	Process(pid int) (p api.Process, ok bool)
	// Change sets attributes of a process.
	Change(by Caller, pid int, c api.Change) (api.Process, error)
	// Hint applies a hint for a process.
	Hint(by Caller, pid int, h api.Hint) (api.Process, error)
	Policy() api.Policy
	SetPolicy(by Caller, p api.Policy) (api.Policy, error)
	Status() api.Status
	// Restore puts everything back as the vendor has it.
	Restore(by Caller) error
	// BeginRun gives the caller's process and its descendants attributes until end is
	// called, which is once.
	BeginRun(by Caller, r api.Run) (started api.RunStarted, end func(), err error)
	// Record returns the record, to which the server adds the orders. It is never nil.
	Record() *record.Record
	Delays() api.Delays
	Pressure() api.Pressure
	// BeginInputs begins a recording of the scheduler's inputs and returns its beginning.
	BeginInputs() ([]byte, error)
	// NextInputs returns what was added to it since the last call, and ends it if end is set.
	// It also ends when it is not read for a while.
	NextInputs(end bool) ([]byte, error)
	// Tally returns what was counted for metrics. It is never nil.
	Tally() *metrics.Tally
}

// Caller is the process that made a request, as the kernel identified it when it
// connected.
type Caller struct {
	UID uint32
	GID uint32
	PID int  // in the daemon's pid namespace; zero: unknown
	All bool // it may do everything: root, the daemon's user, or a client with the token
	// Account is the user that limits count for: the owner of UID, where UID is one of a
	// user's subordinate uids.
	Account uint32
	// Pod identifies the pod of the registered container that the caller is in; empty: none.
	Pod string
}

// ShimProcess is a process with the shim that connected, as the kernel identifies it.
type ShimProcess struct {
	PID     int
	UID     uint32
	Account uint32 // the user that its pages count for: the owner of UID, where UID is a subordinate uid
	All     bool   // it may do everything, as Caller.All; root of a container may not
	Runtime string // as the process reports it: any text

	PageVersion uint32 // of the page that it gets; zero: the highest

	// Exited reports whether the process has exited, so that what was just read about PID may be
	// about another process; nil: it has not.
	Exited func() bool
}

// PageHost shares a page of memory with each process that loaded the shim.
type PageHost interface {
	// Admit makes a page for a process. The descriptors, of the page, the status page and
	// the doorbell, are the caller's to send and to close. leave is called once, when the
	// process has disconnected.
	Admit(ShimProcess) (fds [3]int, leave func(), err error)
}

// Config says where to listen.
type Config struct {
	Socket    string       // path of the unix socket; empty: none
	Agent     string       // path of the unix socket on which an agent registers containers; empty: none
	Pods      string       // path of another control socket, whose folder containers have mounted; empty: none
	Registry  Registry     // nil: no containers can be registered
	TCP       string       // host:port; empty: none
	TokenFile string       // holds the token with which a client over TCP may do everything; empty: none can
	ReadToken string       // the file of the token with which it may only read; empty: none
	Pages     PageHost     // nil: no process gets a page
	FrontEnd  []string     // the program that calls RunFrontEnd; empty: requests are parsed in this process
	Log       *slog.Logger // nil: none
}

// Server answers requests to a Node.
type Server struct {
	node  Node
	cfg   Config
	log   *slog.Logger
	owner uint32 // the daemon's user
	token *token
	read  *token // for reading only

	rights       rights // the daemon's own
	accounts     accounts
	pageVersions pageabi.Versions
	admission    *admission
	budgets      *buckets
	replies      replyBytes
	auditor      auditor
	streams      streams
	unread       unread
	pods         podAccounts
	containersOf func(c net.Conn, pid int) (string, bool)
	silence      time.Duration // of a front end, before it is killed

	listeners []net.Listener // each returns connections
	folders   []*socketFolder

	over    context.Context // done when the server ends
	end     context.CancelFunc
	holding sync.Mutex     // over is not done, or runs does not grow
	runs    sync.WaitGroup // runs and pages
}

// New returns a server that does not listen yet.
func New(node Node, cfg Config) *Server {
	s := &Server{
		node: node, cfg: cfg, log: cfg.Log, owner: uint32(os.Geteuid()),
		pageVersions: pageabi.Understood, accounts: accounts{path: subuidFile}, admission: newAdmission(), budgets: newBuckets(budgetRate, budgetBurst),
		auditor: newAuditor(),
		streams: streams{open: map[streamKey]int{}}, unread: unread{of: map[uint32]int{}}, silence: silenceTime, containersOf: containersOf,
	}
	s.over, s.end = context.WithCancel(context.Background())
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

var errStopping = errors.New("the daemon is stopping")

// Check returns why Listen would fail, as far as that shows while another daemon listens on the same
// sockets: a TCP address may be in use by that daemon, or by another program. It reads the tokens, and
// makes folders of sockets that are missing.
func (s *Server) Check() error {
	if err := s.prepare(); err != nil {
		return err
	}
	if s.cfg.TCP != "" {
		l, err := s.listenTCP()
		switch {
		case err == nil:
			l.Close()
		case !errors.Is(err, syscall.EADDRINUSE):
			return err
		}
	}
	for _, path := range []string{s.cfg.Socket, s.cfg.Pods, s.cfg.Agent} {
		if path == "" {
			continue
		}
		if err := checkSocket(path, path == s.cfg.Socket); err != nil {
			return fmt.Errorf("listen on %s: %w", path, err)
		}
	}
	return s.checkFolders()
}

// prepare reads what Listen needs.
func (s *Server) prepare() (err error) {
	if s.cfg.Socket == "" && s.cfg.TCP == "" {
		return errors.New("listen: neither a unix socket nor a TCP address is configured")
	}
	if s.rights, err = readRights("thread-self"); err != nil {
		return fmt.Errorf("read the daemon's own rights: %w", err)
	}
	if s.cfg.TCP == "" {
		return nil
	}
	return s.readTokens()
}

// listenTCP listens on the TCP address.
func (s *Server) listenTCP() (net.Listener, error) {
	network := "tcp"
	if a, err := netip.ParseAddrPort(s.cfg.TCP); err == nil && a.Addr().Is4() {
		network = "tcp4" // otherwise 0.0.0.0 stands for all addresses of IPv6 as well
	}
	l, err := net.Listen(network, s.cfg.TCP)
	if err != nil {
		switch {
		case errors.Is(err, syscall.EAFNOSUPPORT):
			err = fmt.Errorf("%w: the service has no network; docs/CONFIG.md says how to give it one", err)
		case errors.Is(err, syscall.EADDRINUSE):
			err = fmt.Errorf("%w; stop the program that uses it, or set tcp in the configuration to another port", err)
		}
		return nil, fmt.Errorf("listen on TCP: %w", err)
	}
	return l, nil
}

// Listen opens the sockets. When it returns nil, clients can connect; they are answered
// once Serve runs. A server can listen only once.
func (s *Server) Listen() (err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.prepare(); err != nil {
		return err
	}
	if s.cfg.TCP != "" {
		l, err := s.listenTCP()
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, &tcpListener{Listener: l})
		if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			s.log.Warn("TCP is not encrypted: put TLS in front of it", "tcp", l.Addr().String())
		}
	}
	if s.cfg.Socket != "" {
		if err := s.listenLocal(s.cfg.Socket); err != nil {
			return err
		}
	}
	if err := s.checkFolders(); err != nil {
		return err
	}
	if s.cfg.Pods != "" {
		if err := s.listenLocal(s.cfg.Pods); err != nil {
			return err
		}
	}
	if s.cfg.Agent != "" {
		l, err := s.listenUnix(s.cfg.Agent, forOwner)
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, &agentListener{l, s})
	}
	return nil
}

// checkFolders refuses sockets that share a folder. Containers have that of Pods mounted:
// they must not reach the journal, which is beside Socket, nor the agent's socket.
func (s *Server) checkFolders() error {
	used := map[string]string{}
	for _, path := range []string{s.cfg.Socket, s.cfg.Agent, s.cfg.Pods} {
		if path == "" {
			continue
		}
		folder := filepath.Dir(filepath.Clean(path))
		if other := used[folder]; other != "" {
			return fmt.Errorf("listen on %s: %s is in the same folder; each of socket, agent_socket and pod_socket needs its own", path, other)
		}
		used[folder] = path
	}
	return nil
}

// listenLocal listens on a control socket.
func (s *Server) listenLocal(path string) error {
	l, err := s.listenUnix(path, forAll)
	if err != nil {
		return err
	}
	local, err := s.newLocalListener(l)
	if err != nil {
		l.Close()
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	s.listeners = append(s.listeners, local)
	return nil
}

// listenUnix listens on a unix socket until the server is closed.
func (s *Server) listenUnix(path string, umask int) (*net.UnixListener, error) {
	// The lock of Socket is for all. A lock beside Pods could be taken by a container.
	l, folder, err := listenUnix(path, umask, path == s.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	s.folders = append(s.folders, folder)
	return l, nil
}

// readTokens reads the tokens of TCP.
func (s *Server) readTokens() (err error) {
	if s.cfg.TokenFile == "" && s.cfg.ReadToken == "" {
		return errors.New("listen on TCP: set token_file or read_token_file; without a token every user of the network could control the daemon")
	}
	if s.cfg.TokenFile != "" {
		if s.token, err = readToken(s.cfg.TokenFile); err != nil {
			return err
		}
	}
	if s.cfg.ReadToken != "" {
		if s.read, err = readToken(s.cfg.ReadToken); err != nil {
			return err
		}
	}
	if s.token != nil && s.read != nil && s.token.sum == s.read.sum {
		return errors.New("listen on TCP: token_file and read_token_file have the same token, so a client that may only read could do everything; make another with: openssl rand -hex 32")
	}
	return nil
}

// shutdownTime is how long the server waits at its end for requests under way.
const shutdownTime = 3 * time.Second

// Serve answers requests until ctx is done. It calls Listen if that was not called. When
// it returns, every run has ended and the socket is removed.
func (s *Server) Serve(ctx context.Context) error {
	if s.listeners == nil {
		if err := s.Listen(); err != nil {
			return err
		}
	}
	defer s.close()
	serve := s.serveHere
	if len(s.cfg.FrontEnd) > 0 {
		serve = s.serveSplit
	}
	err := serve(ctx)
	s.runs.Wait()
	return err
}

// serveHere parses requests in this process until ctx is done.
func (s *Server) serveHere(ctx context.Context) error {
	front := frontEnd{log: s.log, ask: s.ask, written: func(c net.Conn) { c.(*connection).replyRead() }}
	srv := front.server(ctx)
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
	s.endRuns()
	done, stop := context.WithTimeout(context.Background(), shutdownTime)
	defer stop()
	if srv.Shutdown(done) != nil {
		srv.Close()
	}
	return err
}

// ask answers a request of a connection that one of the listeners returned.
func (s *Server) ask(c net.Conn, r request) reply {
	conn, _ := c.(*connection)
	return s.answer(conn, r)
}

// endRuns ends all runs and pages, and lets none begin.
func (s *Server) endRuns() {
	s.holding.Lock()
	defer s.holding.Unlock()
	s.end()
}

func (s *Server) close() {
	s.end()
	for _, l := range s.listeners {
		l.Close()
	}
	for _, p := range s.folders {
		p.close()
	}
}
