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
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/metrics"
)

// maxBody is the longest body of a request.
const maxBody = 64 << 10

// answer handles a request and returns the value to send as JSON.
type answer func(*http.Request, caller) (any, error)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, do := range map[string]answer{
		"GET /v1/processes":             s.processes,
		"POST /v1/processes/{pid}":      s.change,
		"POST /v1/processes/{pid}/hint": s.hint,
		"GET /v1/policy":                s.policy,
		"POST /v1/policy":               s.setPolicy,
		"GET /v1/status":                s.status,
		"POST /v1/restore":              s.restore,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.reply(w, r, do) })
	}
	mux.HandleFunc("POST /v1/runs", s.run)
	mux.HandleFunc("POST /v1/shim", s.shim)
	mux.HandleFunc("GET /metrics", s.metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recoverPanic(w, r)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if none, pattern := mux.Handler(r); pattern == "" {
			s.refuseRoute(w, r, none)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// recoverPanic answers a request whose handler panicked, so that a mistake in one
// request does not end the daemon.
func (s *Server) recoverPanic(w http.ResponseWriter, r *http.Request) {
	if p := recover(); p != nil && p != http.ErrAbortHandler {
		s.log.Error("request panicked", "method", r.Method, "path", clip(r.URL.Path), "panic", p, "stack", string(debug.Stack()))
		s.refuse(w, errors.New("the daemon made a mistake, which is in its log"))
	}
}

// discard is a response that is not sent.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// refuseRoute answers a request for which there is no route, in JSON. none is the
// ServeMux's own handler for it, which knows the methods that the path takes.
func (s *Server) refuseRoute(w http.ResponseWriter, r *http.Request, none http.Handler) {
	d := discard{header: http.Header{}}
	none.ServeHTTP(&d, r)
	if d.status != http.StatusMethodNotAllowed {
		s.refuse(w, NotFound("there is no path %s", clip(r.URL.Path)))
		return
	}
	allow := d.header.Get("Allow")
	w.Header().Set("Allow", allow)
	send(w, d.status, api.Error{Message: fmt.Sprintf("path %s takes %s only", clip(r.URL.Path), allow)})
}

// reply identifies the caller and sends the answer to its request.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, do answer) {
	c, err := s.identify(r)
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

// refuse sends an error.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	status := statusOf(err)
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusInternalServerError:
		s.log.Error("request failed", "error", err)
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
		return BadRequest("read the request: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return BadRequest("read the request: there is more than one value")
	}
	return nil
}

// readAttrs decodes v, a request whose attributes are values, and checks those.
func readAttrs(r io.Reader, v any, values *attr.Values, way attr.Way) error {
	if err := read(r, v); err != nil {
		return err
	}
	if err := values.Check(way); err != nil {
		return BadRequest("%w", err)
	}
	if values.Empty() {
		return BadRequest("the request sets no attribute")
	}
	return nil
}

// clip quotes what a caller sent, shortened.
func clip(s string) string {
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return strconv.Quote(s)
}

// owns reports whether the caller may see and change what a user runs.
func (c caller) owns(uid uint32) bool { return c.all || c.uid == uid }

// visible returns the part of p that the caller may see. Of another user's process that
// is the pid, the user, the queues and the attributes that are public.
func (c caller) visible(p api.Process) api.Process {
	if !c.owns(p.UID) {
		p = api.Process{PID: p.PID, User: p.User, UID: p.UID, Attrs: p.Attrs.Public(), Queues: p.Queues}
	}
	if p.Queues == nil {
		p.Queues = []api.Queue{} // an empty list in JSON, not null
	}
	return p
}

func (s *Server) visibleProcesses(c caller) []api.Process {
	all := []api.Process{}
	for _, p := range s.node.Processes() {
		all = append(all, c.visible(p))
	}
	return all
}

func (s *Server) processes(_ *http.Request, c caller) (any, error) { return s.visibleProcesses(c), nil }

// target returns the process that a request names in its path, which the caller may
// change. The kernel knows the owner of a process that the node does not know yet.
func (s *Server) target(r *http.Request, c caller) (int, error) {
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil || pid <= 0 {
		return 0, BadRequest("%s is not a pid", clip(r.PathValue("pid")))
	}
	all := s.node.Processes()
	var uid uint32
	if i := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid }); i >= 0 {
		uid = all[i].UID
	} else if owner, ok := ownerOf(pid); ok {
		uid = owner
	} else if !c.all { // otherwise the node reports it
		return 0, NotFound("there is no process %d", pid)
	}
	if !c.owns(uid) {
		return 0, Forbidden("process %d belongs to another user: only its owner and root may change it", pid)
	}
	return pid, nil
}

func (s *Server) hint(r *http.Request, c caller) (any, error) {
	var h api.Hint
	if err := read(r.Body, &h); err != nil {
		return nil, err
	}
	if err := h.Check(); err != nil {
		return nil, BadRequest("%w", err)
	}
	if h.Empty() {
		return nil, BadRequest("the hint is empty")
	}
	pid, err := s.target(r, c)
	if err != nil {
		return nil, err
	}
	p, err := s.node.Hint(c.public(), pid, h)
	return c.visible(p), err
}

func (s *Server) change(r *http.Request, c caller) (any, error) {
	var change api.Change
	if err := readAttrs(r.Body, &change, &change.Values, attr.BySet); err != nil {
		return nil, err
	}
	pid, err := s.target(r, c)
	if err != nil {
		return nil, err
	}
	p, err := s.node.Change(c.public(), pid, change)
	return c.visible(p), err
}

func (s *Server) policy(*http.Request, caller) (any, error) { return s.node.Policy(), nil }

func (s *Server) setPolicy(r *http.Request, c caller) (any, error) {
	if err := mayManage(c, "change the policy"); err != nil {
		return nil, err
	}
	var p api.Policy
	if err := read(r.Body, &p); err != nil {
		return nil, err
	}
	if p.Name == "" {
		return nil, BadRequest("change the policy: the name of the policy is missing")
	}
	if p.Overruled != "" || p.Devices != nil {
		return nil, BadRequest("change the policy: overruled and devices can be read only")
	}
	if p.Params["exec"] != "" && !c.local {
		return nil, Forbidden("change the policy: a command is started only by a request on the daemon's unix socket, not over TCP")
	}
	return s.node.SetPolicy(c.public(), p)
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
	if err := mayManage(c, "restore all devices"); err != nil {
		return nil, err
	}
	if err := s.node.Restore(c.public()); err != nil {
		return nil, err
	}
	return s.status(r, c)
}

// mayManage says why the caller may not do what affects every user.
func mayManage(c caller, what string) error {
	if c.all {
		return nil
	}
	return Forbidden("%s: it affects every user, so only root and the daemon's own user may", what)
}

// metrics answers a scrape. The caller sees what GET /v1/processes shows it, and less.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	c, err := s.identify(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	text := metrics.Text(s.node.Status(), s.visibleProcesses(c))
	w.Header().Set("Content-Type", metrics.ContentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // the caller may be gone
}

// run starts a run and keeps the response open until the caller ends it. Until then the
// caller's process and its descendants have the attributes.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	ignored, end, err := s.beginRun(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	s.runs.Add(1)
	defer s.runs.Done()
	defer end()
	// A run has no time limit. The end of the connection ends the context.
	conn := http.NewResponseController(w)
	if errors.Join(conn.SetReadDeadline(time.Time{}), conn.SetWriteDeadline(time.Time{})) != nil {
		return
	}
	send(w, http.StatusOK, api.RunStarted{Ignored: ignored})
	if conn.Flush() != nil {
		return
	}
	<-r.Context().Done()
}

func (s *Server) beginRun(r *http.Request) (ignored []api.Ignored, end func(), err error) {
	c, err := s.identify(r)
	if err != nil {
		return nil, nil, err
	}
	var run api.Run
	if err := readAttrs(r.Body, &run, &run.Values, attr.ByRun); err != nil {
		return nil, nil, err
	}
	if !c.local || c.pid <= 0 {
		return nil, nil, Conflict("begin a run: it must be begun on the daemon's unix socket, by a process that the daemon can see")
	}
	// A connection can outlive the process that made it, and the pid be reused.
	if uid, ok := ownerOf(c.pid); !ok || !c.owns(uid) {
		return nil, nil, NotFound("begin a run: process %d, the caller, has exited", c.pid)
	}
	return s.node.BeginRun(c.public(), run)
}
