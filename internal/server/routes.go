package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
)

// mostBody is how much a request may say.
const mostBody = 64 << 10

// answer is what a request comes to: a value for the caller, or an error.
type answer func(*http.Request, caller) (any, error)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range []struct {
		path      string
		get, post answer
	}{
		{"/v1/processes", s.processes, nil},
		{"/v1/processes/{pid}", nil, s.change},
		{"/v1/processes/{pid}/hint", nil, s.hint},
		{"/v1/policy", s.policy, s.setPolicy},
		{"/v1/status", s.status, nil},
		{"/v1/restore", nil, s.restore},
	} {
		mux.HandleFunc(route.path, func(w http.ResponseWriter, r *http.Request) {
			do, allowed := answer(nil), ""
			for _, m := range []struct {
				method string
				answer answer
			}{{http.MethodGet, route.get}, {http.MethodPost, route.post}} {
				if m.answer == nil {
					continue
				}
				if allowed != "" {
					allowed += ", "
				}
				allowed += m.method
				if r.Method == m.method {
					do = m.answer
				}
			}
			s.reply(w, r, do, allowed)
		})
	}
	mux.HandleFunc("/v1/runs", s.run)
	mux.HandleFunc("/v1/shim", s.shim)
	mux.HandleFunc("/metrics", s.metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, fmt.Errorf("there is no %s here: %w", clip(r.URL.Path), ErrNotFound))
	})
	return s.guard(mux)
}

// guard bounds every body, and answers for a panic: a mistake in one request is
// not the end of the daemon.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.log.Error("a request ended in a panic", "method", r.Method, "path", clip(r.URL.Path), "panic", p, "stack", string(debug.Stack()))
				s.refuse(w, errors.New("the daemon made a mistake, which is in its log"))
			}
		}()
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		next.ServeHTTP(w, r)
	})
}

// reply finds out who is calling, and sends what the call comes to.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, do answer, allowed string) {
	if do == nil {
		w.Header().Set("Allow", allowed)
		send(w, http.StatusMethodNotAllowed, api.Error{Message: fmt.Sprintf("%s takes %s only", clip(r.URL.Path), allowed)})
		return
	}
	c, err := s.who(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	v, err := do(r, c)
	if err != nil {
		s.refuse(w, err)
		return
	}
	send(w, http.StatusOK, v)
}

func (s *Server) refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errNoToken):
		w.Header().Set("WWW-Authenticate", "Bearer")
		status = http.StatusUnauthorized
	case errors.As(err, new(*http.MaxBytesError)):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrBadRequest):
		status = http.StatusBadRequest
	case errors.Is(err, ErrForbidden):
		status = http.StatusForbidden
	case errors.Is(err, ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrConflict):
		status = http.StatusConflict
	default:
		s.log.Error("a request failed", "err", err)
	}
	send(w, status, api.Error{Message: err.Error()})
}

func send(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

// read decodes the body of a request: one value, without unknown fields.
func read(r io.Reader, v any) error {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the body is empty")
		}
		return fmt.Errorf("read the request: %w: %w", ErrBadRequest, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the request: %w: there is more than one value", ErrBadRequest)
	}
	return nil
}

// readChange decodes and checks what is asked for a process.
func readChange(r io.Reader, v any, c *api.Change) error {
	if err := read(r, v); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if c.Empty() {
		return fmt.Errorf("%w: it asks for nothing", ErrBadRequest)
	}
	return nil
}

// clip keeps what a caller sent to a length that can be told.
func clip(s string) string {
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return strconv.Quote(s)
}

// owns reports whether the caller may look at, and change, what a user runs.
func (c caller) owns(uid uint32) bool { return c.all || c.uid == uid }

// veil leaves what the caller may see. Of others' programs that is who uses which device,
// how, and as what: what is asked of a program and how it does is its owner's, and so is a
// field that nobody has thought of here.
func (c caller) veil(p api.Process) api.Process {
	if !c.owns(p.UID) {
		p = api.Process{PID: p.PID, User: p.User, UID: p.UID, Class: p.Class, From: p.From, Paused: p.Paused, Queues: p.Queues}
	}
	if p.Queues == nil {
		p.Queues = []api.Queue{} // a list to every language
	}
	return p
}

func (s *Server) processes(_ *http.Request, c caller) (any, error) {
	all := []api.Process{}
	for _, p := range s.node.Processes() {
		all = append(all, c.veil(p))
	}
	return all, nil
}

// pidOf is the process that a request is about.
func pidOf(r *http.Request) (int, error) {
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%w: %s is not a pid", ErrBadRequest, clip(r.PathValue("pid")))
	}
	return pid, nil
}

func (s *Server) hint(r *http.Request, c caller) (any, error) {
	pid, err := pidOf(r)
	if err != nil {
		return nil, err
	}
	var h api.Hint
	if err := read(r.Body, &h); err != nil {
		return nil, err
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if h.Empty() {
		return nil, fmt.Errorf("%w: it says nothing", ErrBadRequest)
	}
	if err := s.mayChange(c, pid); err != nil {
		return nil, err
	}
	p, err := s.node.Hint(pid, h)
	if err != nil {
		return nil, err
	}
	return c.veil(p), nil
}

func (s *Server) change(r *http.Request, c caller) (any, error) {
	pid, err := pidOf(r)
	if err != nil {
		return nil, err
	}
	var change api.Change
	if err := readChange(r.Body, &change, &change); err != nil {
		return nil, err
	}
	if err := s.mayChange(c, pid); err != nil {
		return nil, err
	}
	p, err := s.node.Change(pid, change)
	if err != nil {
		return nil, err
	}
	return c.veil(p), nil
}

// mayChange says why the caller may not change a process. One that the node does
// not know (yet) is known to the kernel.
func (s *Server) mayChange(c caller, pid int) error {
	all := s.node.Processes()
	i := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid })
	var uid uint32
	if i >= 0 {
		uid = all[i].UID
	} else if owner, ok := ownerOf(pid); ok {
		uid = owner
	} else if !c.all { // who may all is told by the node
		return fmt.Errorf("there is no process %d: %w", pid, ErrNotFound)
	}
	if !c.owns(uid) {
		return fmt.Errorf("process %d belongs to another user: %w; only its owner and root may change it", pid, ErrForbidden)
	}
	return nil
}

func (s *Server) policy(*http.Request, caller) (any, error) { return s.node.Policy(), nil }

func (s *Server) setPolicy(r *http.Request, c caller) (any, error) {
	if err := s.mayRule(c, "change the policy"); err != nil {
		return nil, err
	}
	var p api.Policy
	if err := read(r.Body, &p); err != nil {
		return nil, err
	}
	if p.Name == "" {
		return nil, fmt.Errorf("%w: which policy? The name is missing", ErrBadRequest)
	}
	if p.Overruled != "" {
		return nil, fmt.Errorf("%w: overruled is the daemon's to say", ErrBadRequest)
	}
	return s.node.SetPolicy(p)
}

func (s *Server) status(*http.Request, caller) (any, error) {
	st := s.node.Status()
	if st.Devices == nil {
		st.Devices = []api.Device{}
	}
	if st.Checks == nil {
		st.Checks = []api.Check{}
	}
	return st, nil
}

func (s *Server) restore(r *http.Request, c caller) (any, error) {
	if err := s.mayRule(c, "restore all devices"); err != nil {
		return nil, err
	}
	if err := s.node.Restore(); err != nil {
		return nil, err
	}
	return s.status(r, c)
}

// mayRule says why the caller may not do what concerns every user.
func (s *Server) mayRule(c caller, what string) error {
	if c.all {
		return nil
	}
	return fmt.Errorf("%s: %w; it concerns every user, so only root and the daemon's owner may", what, ErrForbidden)
}

// run holds a request open for as long as its program runs. The caller's process
// and its tree have the attributes until then.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		s.reply(w, r, nil, http.MethodPost)
		return
	}
	end, err := s.beginRun(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	s.runs.Add(1)
	defer s.runs.Done()
	defer end()
	// From here on nothing is late. An end of the connection ends the context.
	conn := http.NewResponseController(w)
	if errors.Join(conn.SetReadDeadline(time.Time{}), conn.SetWriteDeadline(time.Time{})) != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if conn.Flush() != nil {
		return
	}
	<-r.Context().Done()
}

func (s *Server) beginRun(r *http.Request) (end func(), err error) {
	c, err := s.who(r)
	if err != nil {
		return nil, err
	}
	var run api.Run
	if err := readChange(r.Body, &run, &run.Change); err != nil {
		return nil, err
	}
	if !c.local || c.pid <= 0 {
		return nil, fmt.Errorf("a run is begun on the daemon's own socket, by a process it can see: %w", ErrConflict)
	}
	// A connection can outlive the process that made it, and its pid go to
	// somebody else's.
	if uid, ok := ownerOf(c.pid); !ok || !c.owns(uid) {
		return nil, fmt.Errorf("process %d, which asked for a run, is gone: %w", c.pid, ErrNotFound)
	}
	return s.node.BeginRun(c.pid, run.Change)
}
