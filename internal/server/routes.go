package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Limits of a request. A run has no time limit.
const (
	headerTime  = 5 * time.Second
	requestTime = 10 * time.Second
	answerTime  = 30 * time.Second
	idleTime    = 2 * time.Minute
	maxHeader   = 16 << 10
	maxBody     = 64 << 10
	maxText     = 256 // of a text in a request, such as the name of a policy
)

// frontEnd parses requests. It knows nothing about callers and decides nothing.
type frontEnd struct {
	// ask passes a request of a connection on and returns the reply.
	ask func(net.Conn, request) reply
	// written reports that a reply that counts as unread was written.
	written func(net.Conn)
	log     *slog.Logger
}

type connKey struct{}

// server returns an HTTP server for the connections of listeners. Requests end when ctx
// does.
func (f *frontEnd) server(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           f.routes(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
	}
}

// parse reads a request.
type parse func(*http.Request) (request, error)

// paths has the parser of each path.
var paths = map[string]parse{
	"GET /v1/processes":             plain(opProcesses),
	"POST /v1/processes/{pid}":      readChange,
	"POST /v1/processes/{pid}/hint": readHint,
	"GET /v1/policy":                plain(opPolicy),
	"POST /v1/policy":               readPolicy,
	"GET /v1/status":                plain(opStatus),
	"POST /v1/restore":              plain(opRestore),
	"POST /v1/runs":                 readRun,
	"POST /v1/shim":                 readShim,
	"GET /metrics":                  plain(opMetrics),
	"GET /v1/record":                readRecordQuery(opRecord),
	"GET /v1/record/stream":         readRecordQuery(opStream),
	"GET /v1/delays":                plain(opDelays),
	"GET /v1/pressure":              readPressure,
	"POST /v1/record/inputs":        plain(opBeginInputs),
	"GET /v1/record/inputs":         plain(opNextInputs),
	"DELETE /v1/record/inputs":      plain(opEndInputs),
	"GET /v1/containers":            plain(opContainers),
	"PUT /v1/containers/{id}":       readContainer,
	"DELETE /v1/containers/{id}":    readContainerID,
}

func (f *frontEnd) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, read := range paths {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { f.answer(w, r, read) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer f.recoverPanic(w, r)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if none, pattern := mux.Handler(r); pattern == "" {
			refuseRoute(w, r, none)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// answer reads a request, passes it on and sends the reply.
func (f *frontEnd) answer(w http.ResponseWriter, r *http.Request, read parse) {
	req, err := read(r)
	if err != nil {
		a := errorReply(err)
		a.close = true // such a request takes no tokens, but the next connection does
		a.write(w)
		return
	}
	req.token = tokenOf(r.Header)
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	a := f.ask(conn, req)
	if !a.held {
		a.write(w)
		if a.counts() {
			f.written(conn)
		}
		return
	}
	if own, _, err := http.NewResponseController(w).Hijack(); err == nil {
		own.Close()
	}
}

// recoverPanic answers a request whose handler panicked, so that a mistake in one
// request does not end the process.
func (f *frontEnd) recoverPanic(w http.ResponseWriter, r *http.Request) {
	if p := recover(); p != nil && p != http.ErrAbortHandler {
		f.log.Error("request panicked", "method", r.Method, "path", clip(r.URL.Path), "panic", p, "stack", string(debug.Stack()))
		errorReply(errMistake).write(w)
	}
}

var errMistake = errors.New("the daemon made a mistake, which is in its log")

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
func refuseRoute(w http.ResponseWriter, r *http.Request, none http.Handler) {
	d := discard{header: http.Header{}}
	none.ServeHTTP(&d, r)
	if d.status != http.StatusMethodNotAllowed {
		a := errorReply(NotFound("there is no path %s", clip(r.URL.Path)))
		a.close = true
		a.write(w)
		return
	}
	w.Header().Set("Connection", "close")
	allow := d.header.Get("Allow")
	w.Header().Set("Allow", allow)
	jsonReply(d.status, api.Error{Message: fmt.Sprintf("path %s takes %s only", clip(r.URL.Path), allow)}).write(w)
}

// clip quotes what a caller sent, shortened.
func clip(s string) string {
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return strconv.Quote(s)
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

// plain returns the parser of a request that is no more than its path.
func plain(op operation) parse {
	return func(*http.Request) (request, error) { return request{op: op}, nil }
}

// pidOf returns the pid in the path of a request.
func pidOf(r *http.Request) (int, error) {
	pid, err := strconv.ParseInt(r.PathValue("pid"), 10, 32)
	if err != nil || pid <= 0 {
		return 0, BadRequest("%s is not a pid", clip(r.PathValue("pid")))
	}
	return int(pid), nil
}

func readChange(r *http.Request) (request, error) {
	var c api.Change
	if err := read(r.Body, &c); err != nil {
		return request{}, err
	}
	pid, wrong := pidOf(r)
	req := request{op: opChange, pid: pid, values: c.Values, tree: c.Tree}
	return req, errors.Join(req.checkAttrs(), wrong)
}

func readRun(r *http.Request) (request, error) {
	var run api.Run
	if err := read(r.Body, &run); err != nil {
		return request{}, err
	}
	req := request{op: opRun, values: run.Values}
	return req, req.checkAttrs()
}

func readHint(r *http.Request) (request, error) {
	var h api.Hint
	if err := read(r.Body, &h); err != nil {
		return request{}, err
	}
	pid, wrong := pidOf(r)
	req := request{op: opHint, pid: pid, values: h.Values, begin: h.Begin, end: h.End}
	return req, errors.Join(req.checkAttrs(), wrong)
}

func readPolicy(r *http.Request) (request, error) {
	var p api.Policy
	if err := read(r.Body, &p); err != nil {
		return request{}, err
	}
	if p.Overruled != "" || p.Devices != nil {
		return request{}, BadRequest("change the policy: overruled and devices can be read only")
	}
	req := request{op: opSetPolicy, policy: p}
	return req, req.checkPolicy()
}

func readShim(r *http.Request) (request, error) {
	return request{op: opShim, shimVersions: versionsIn(r.Header), shimRuntime: cut(r.Header.Get("Giveway-Runtime"))}, nil
}

// versionsIn returns the versions of the page in a shim's request: zero if they are invalid.
// A shim without the second header understands one version.
func versionsIn(h http.Header) (v pageabi.Versions) {
	lowest, err := strconv.ParseUint(h.Get("Giveway-Abi"), 10, 32)
	if err != nil {
		return v
	}
	highest, err := strconv.ParseUint(cmp.Or(h.Get("Giveway-Abi-Max"), h.Get("Giveway-Abi")), 10, 32)
	if err != nil {
		return v
	}
	return pageabi.Versions{Lowest: uint32(lowest), Highest: uint32(highest)}
}

// cut shortens a text to maxText bytes.
func cut(s string) string { return s[:min(len(s), maxText)] }

// check returns an error if a request is not one that this package's parsers return. It is
// made again where a request arrives from another process.
func (r *request) check() error {
	switch r.op {
	case opChange, opRun, opHint:
		return r.checkAttrs()
	case opSetPolicy:
		return r.checkPolicy()
	case opProcesses, opMetrics, opPolicy, opStatus, opRestore, opShim, opDelays, opPressure, opBeginInputs, opNextInputs, opEndInputs, opContainers:
		return nil
	case opRegister, opUnregister:
		return r.checkContainer()
	case opRecord, opStream:
		return r.record.check()
	}
	return BadRequest("there is no operation %d", r.op)
}

// checkAttrs checks the attributes of a request.
func (r *request) checkAttrs() error {
	if r.op == opHint {
		h := r.hint()
		if err := h.Check(); err != nil {
			return BadRequest("%w", err)
		}
		if h.Empty() {
			return BadRequest("the hint is empty")
		}
		return nil
	}
	way := attr.BySet
	if r.op == opRun {
		way = attr.ByRun
	}
	if err := r.values.Check(way); err != nil {
		return BadRequest("%w", err)
	}
	if r.values.Empty() {
		return BadRequest("the request sets no attribute")
	}
	return nil
}

func (r *request) hint() api.Hint { return api.Hint{Values: r.values, Begin: r.begin, End: r.end} }

// Limits on a policy in a request.
const (
	maxParams = 64
	maxParam  = 4096 // bytes of a value: it may be a command
)

func (r *request) checkPolicy() error {
	p := r.policy
	if p.Name == "" {
		return BadRequest("change the policy: the name of the policy is missing")
	}
	long := len(p.Name) > maxText || len(p.Device) > maxText || len(p.Params) > maxParams
	for name, value := range p.Params {
		long = long || len(name) > maxText || len(value) > maxParam
	}
	if long {
		return BadRequest("change the policy: more than %d parameters, or a name of more than %d or a value of more than %d bytes", maxParams, maxText, maxParam)
	}
	return nil
}
