// Package dashboard serves the dashboard, a page for a browser that shows what the daemon
// records. It runs in the process of the user who starts it and has that user's rights: the
// daemon itself needs no network.
package dashboard

import (
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

//go:embed page
var files embed.FS

// Daemon is what the dashboard asks: client.Client.
type Daemon interface {
	Processes(context.Context) ([]api.Process, error)
	Status(context.Context) (api.Status, error)
	Record(context.Context, api.RecordQuery) (api.Record, error)
	Delays(context.Context) (api.Delays, error)
	Pressure(context.Context) (api.Pressure, error)
	Change(context.Context, int, api.Change) (api.Process, error)
}

// tokenHeader is where the page sends the token.
const tokenHeader = "Giveway-Token"

// maxChange is the longest body of a change.
const maxChange = 4 << 10

// rightsHeader says in each answer whether the request had the token: "change" or "look".
const rightsHeader = "Giveway-Rights"

// server answers the page's requests.
type server struct {
	daemon Daemon
	token  string
	others bucket // for requests without the token
}

// Handler returns the page and the parts of the API that it uses. Every local user can
// connect to it, so a request without the token can change nothing, and sees what a user
// without processes sees with 'giveway ps'.
func Handler(daemon Daemon, token string) http.Handler {
	s := &server{daemon: daemon, token: token}
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /v1/processes", s.processes)
	mux.HandleFunc("GET /v1/record", s.record)
	mux.HandleFunc("GET /v1/status", get(daemon.Status))
	mux.HandleFunc("GET /v1/delays", get(daemon.Delays))
	mux.HandleFunc("GET /v1/pressure", get(daemon.Pressure))
	mux.HandleFunc("POST /v1/processes/{pid}", s.change)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		if !isLocal(r.Host) || !sameOrigin(r) {
			fail(w, http.StatusForbidden, errors.New("this page answers only requests to localhost, of its own page"))
			return
		}
		h.Set(rightsHeader, "change")
		if !s.trusted(r) {
			h.Set(rightsHeader, "look")
			if !s.others.take(time.Now()) {
				fail(w, http.StatusTooManyRequests, errors.New("too many requests without the token; wait a second"))
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// isLocal reports whether a Host header names this machine. A page of another site can
// make its own name resolve to this machine; the header then has that name.
func isLocal(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// bucket limits requests without the token: they use the daemon with the rights and within
// the limits of the user who serves the page.
type bucket struct {
	mu   sync.Mutex
	used float64
	at   time.Time
}

const othersPerSecond, othersAtOnce = 40, 80

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = max(b.used-othersPerSecond*now.Sub(b.at).Seconds(), 0)
	b.at = now
	if b.used+1 > othersAtOnce {
		return false
	}
	b.used++
	return true
}

// sameOrigin reports whether a request is not one of a page of another site. For some
// requests of such a page a browser sends no Origin, but then it says where they are from.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

// trusted reports whether a request has the token.
func (s *server) trusted(r *http.Request) bool {
	return s.token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) == 1
}

func (s *server) processes(w http.ResponseWriter, r *http.Request) {
	all, err := s.daemon.Processes(r.Context())
	if !s.trusted(r) {
		for i := range all {
			p := &all[i]
			*p = api.Process{PID: p.PID, User: p.User, UID: p.UID, Attrs: p.Attrs.Public(), Queues: p.Queues, Member: p.Member}
		}
	}
	answer(w, all, err)
}

func (s *server) record(w http.ResponseWriter, r *http.Request) {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	record, err := s.daemon.Record(r.Context(), q)
	if !s.trusted(r) {
		record.Entries = public(record.Entries)
	}
	answer(w, record, err)
}

// public returns what every user may see of entries.
func public(entries []api.Entry) []api.Entry {
	entries = slices.DeleteFunc(entries, func(e api.Entry) bool { return e.Kind == api.KindRequest })
	for i := range entries {
		if o := entries[i].Order; o != nil {
			entries[i].Order = &api.Order{Name: o.Name, Refused: o.Refused}
		}
		if s := entries[i].State; s != nil {
			entries[i].State = &api.StateChange{What: s.What, Change: s.Change, Class: s.Class, Paused: s.Paused, Policy: s.Policy}
		}
	}
	return entries
}

// readQuery reads what the page asks for; the daemon checks it.
func readQuery(values url.Values) (q api.RecordQuery, err error) {
	number := func(name string) uint64 {
		text := values.Get(name)
		if text == "" {
			return 0
		}
		n, bad := strconv.ParseUint(text, 10, 63)
		err = errors.Join(err, bad)
		return n
	}
	q = api.RecordQuery{After: number("after"), Limit: int(min(number("limit"), api.MaxRecordLimit)), Last: values.Get("last") == "true"}
	if kinds := values.Get("kinds"); kinds != "" {
		for name := range strings.SplitSeq(kinds, ",") {
			kind, bad := api.ParseEntryKind(name)
			err = errors.Join(err, bad)
			q.Kinds = append(q.Kinds, kind)
		}
	}
	return q, err
}

// settable are the attributes that the page can change.
var settable = []string{"class", "weight", "paused"}

func (s *server) change(w http.ResponseWriter, r *http.Request) {
	if !s.trusted(r) {
		fail(w, http.StatusForbidden, errors.New("without the token the dashboard changes nothing; open the address that 'giveway dashboard' printed"))
		return
	}
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil || pid <= 0 {
		fail(w, http.StatusBadRequest, errors.New("the path must end with a pid"))
		return
	}
	var keys map[string]json.RawMessage
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange)).Decode(&keys); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	for key := range keys {
		if !slices.Contains(settable, key) {
			fail(w, http.StatusBadRequest, errors.New("the dashboard changes only "+strings.Join(settable, ", ")))
			return
		}
	}
	var change api.Change
	text, err := json.Marshal(keys)
	if err == nil {
		err = json.Unmarshal(text, &change)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	p, err := s.daemon.Change(r.Context(), pid, change)
	answer(w, p, err)
}

// get answers with what the daemon answers.
func get[T any](call func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := call(r.Context())
		answer(w, v, err)
	}
}

// answer sends a value, or the daemon's error.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		status := http.StatusBadGateway // no daemon
		var refused *client.Error
		if errors.As(err, &refused) {
			status = refused.Status
		}
		fail(w, status, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the browser is gone
}

func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Message: err.Error()})
}
