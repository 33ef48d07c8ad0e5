package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/quota"
	"github.com/giveway/giveway/internal/record"
	"golang.org/x/sys/unix"
)

// recordQuery is what a caller wants of the record.
type recordQuery struct {
	after uint64
	kinds record.Set
	limit int
	last  bool
}

func (q *recordQuery) check() error {
	if q.limit < 1 || q.limit > api.MaxRecordLimit || q.kinds == 0 || q.kinds&^record.All != 0 {
		return BadRequest("read the record: limit is 1 to %d, and kinds are %v", api.MaxRecordLimit, api.EntryKinds())
	}
	return nil
}

// readRecordQuery returns the parser of a request for the record. A browser that connects
// again sends the number of the last event in the header Last-Event-ID.
func readRecordQuery(op operation) parse {
	return func(r *http.Request) (request, error) {
		values := r.URL.Query()
		q := recordQuery{limit: api.DefaultRecordLimit, kinds: record.All}
		for name, given := range values {
			var err error
			switch value := given[len(given)-1]; name {
			case "after":
				q.after, err = strconv.ParseUint(value, 10, 64)
			case "limit":
				q.limit, err = strconv.Atoi(value)
			case "last":
				q.last, err = strconv.ParseBool(value)
			case "kinds":
				q.kinds, err = parseKinds(value)
			default:
				err = fmt.Errorf("there is no such parameter; there are: after, kinds, limit, last")
			}
			if err != nil {
				return request{}, BadRequest("read the record: parameter %s: %w", clip(name), err)
			}
		}
		if id := r.Header.Get("Last-Event-ID"); op == opStream && id != "" {
			after, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return request{}, BadRequest("read the record: Last-Event-ID: %w", err)
			}
			q.after, q.last = after, false
		}
		return request{op: op, record: q}, q.check()
	}
}

func parseKinds(list string) (record.Set, error) {
	var all []api.EntryKind
	for name := range strings.SplitSeq(list, ",") {
		k, err := api.ParseEntryKind(name)
		if err != nil {
			return 0, err
		}
		all = append(all, k)
	}
	return record.SetOf(all), nil
}

// readRecord returns the part of the record that a caller asks for and may see.
func (s *Server) readRecord(by caller, q recordQuery) reply {
	body, _ := s.node.Record().AppendRecord(nil, by.query(q), by.hides)
	return reply{status: http.StatusOK, body: append(body, '\n')}
}

// query returns the query of a caller. Requests of other users' processes, and of pods, are not
// shown, as in the list of processes.
func (c caller) query(q recordQuery) record.Query {
	return record.Query{
		After: q.after, Kinds: q.kinds, Limit: q.limit, Last: q.last,
		Visible: func(e *record.Entry) bool { return e.Kind != record.Request || c.owns(e.UID, e.Pod) },
	}
}

// hides reports whether the caller may see only a part of an entry: it is about another
// user's process, or an order that another user gave and that affects neither the caller nor
// everyone.
func (c caller) hides(e *record.Entry) bool {
	switch {
	case e.Kind == record.State:
		return !c.owns(e.UID, e.Pod)
	case e.Kind != record.Order:
		return false
	}
	d := e.Words
	by := uint32(noUser)
	if d.Order.UID != nil {
		by = uint32(*d.Order.UID)
	}
	return !(d.AffectsAll || c.owns(d.UID, d.Pod) || c.owns(by, d.ByPod))
}

// streamHeader begins the response to a stream, which has no end of its own.
const streamHeader = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"

const (
	streamPeriod    = 50 * time.Millisecond // between two looks at the record
	streamHeartbeat = 10 * time.Second      // without an entry
	streamPatience  = 10 * time.Second      // for a reader to take an event; then the stream ends

	maxStreams = 64 // of all accounts but those that manage the daemon, which have as many again
)

// streamQuota divides the streams among accounts.
var streamQuota = quota.Quota{All: maxStreams, Each: 8}

// streams counts the open streams.
type streams struct {
	mu   sync.Mutex
	open map[streamKey]int
	all  int // but those of callers that may do everything
}

// streamKey is what streams are counted by: the account, or all callers that may do everything.
type streamKey struct {
	account uint32
	all     bool
}

// enter counts a stream. leave ends it.
func (s *streams) enter(by caller) (leave func(), err error) {
	key := streamKey{account: by.account}
	if by.all {
		key = streamKey{all: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if by.all && s.open[key] >= maxStreams || !by.all && !streamQuota.Allows(s.open[key], s.all, 1) {
		return nil, TooMany("stream the record: too many streams are open; close one, or read /v1/record")
	}
	count := func(n int) {
		if s.open[key] += n; s.open[key] == 0 {
			delete(s.open, key)
		}
		if !by.all {
			s.all += n
		}
	}
	count(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		count(-1)
	}, nil
}

// beginStream sends a caller the record as it grows. The daemon writes to its own copy of the
// connection; the front end has no part in it any more.
func (s *Server) beginStream(c *connection, by caller, q recordQuery) error {
	leave, err := s.streams.enter(by)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.over)
	ended := make(chan struct{})
	close(ended) // until the stream has begun
	end := func() { cancel() }
	h := &held{events: unix.POLLRDHUP, end: func() { end(); <-ended; leave() }}
	return s.hold(c, h, func(conn socket) error {
		if _, err := conn.Write([]byte(streamHeader)); err != nil {
			return err
		}
		ended = make(chan struct{})
		end = func() {
			cancel()
			_ = conn.SetWriteDeadline(time.Unix(1, 0)) // a socket has deadlines
		}
		go func(ended chan struct{}) {
			defer close(ended)
			s.stream(ctx, conn, by, q)
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // which ends held.wait
		}(ended)
		return nil
	})
}

// stream writes entries to a connection until ctx is done or the connection ends. Memory is
// bounded by the limit of the query: a reader that is too slow loses entries, and is told.
// An event after which the record has more costs as much as another request for the record;
// the stream ends if the account has not the tokens.
func (s *Server) stream(ctx context.Context, conn socket, by caller, q recordQuery) {
	tick := time.NewTicker(streamPeriod)
	defer tick.Stop()
	last, query := time.Now(), by.query(q)
	var buf []byte
	for {
		buf = append(buf[:0], "data: "...)
		empty := len(buf)
		var res record.Result
		if s.node.Record().Last() != query.After {
			buf, res = s.node.Record().AppendRecord(buf, query, by.hides)
			if res.Shown == 0 && res.Lost == 0 && time.Since(last) < streamHeartbeat {
				buf = buf[:empty]
			}
			query.After, query.Last = res.Next, false
		}
		switch {
		case len(buf) > empty:
			buf = fmt.Appendf(buf, "\nid: %d\n\n", query.After)
		case time.Since(last) >= streamHeartbeat:
			buf = append(buf[:0], ": heartbeat\n\n"...)
		default:
			buf = buf[:0]
		}
		if len(buf) > 0 {
			_ = conn.SetWriteDeadline(time.Now().Add(streamPatience)) // a socket has deadlines
			if ctx.Err() != nil {
				return
			}
			if _, err := conn.Write(buf); err != nil {
				return
			}
			last = time.Now()
		}
		if res.More {
			if s.budgets.take(ctx, by, operations[opStream].cost) != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readPressure reads a request for pressure: of everything, or of one device or process.
func readPressure(r *http.Request) (request, error) {
	req := request{op: opPressure}
	for name, given := range r.URL.Query() {
		switch value := given[len(given)-1]; {
		case name == "device" && len(value) <= maxText:
			req.device = value
		case name == "pid":
			pid, err := strconv.ParseInt(value, 10, 32)
			if err != nil || pid <= 0 {
				return request{}, BadRequest("%s is not a pid", clip(value))
			}
			req.pid = int(pid)
		case name == "format" && (value == "psi" || value == "json"):
			req.psi = value == "psi"
		default:
			return request{}, BadRequest("read the pressure: there is no parameter %s with this value; there are: device, pid, format=psi, format=json", clip(name))
		}
	}
	return req, nil
}

// pressure returns the pressure of everything, or of one device or process.
func (s *Server) pressure(r request) (reply, outcome, error) {
	p, none := s.node.Pressure(), outcome{uid: noUser}
	if r.device != "" || r.pid != 0 {
		if err := s.selectPressure(&p, r); err != nil {
			return reply{}, none, err
		}
	}
	if !r.psi {
		return jsonReply(http.StatusOK, p), none, nil
	}
	var text []byte
	alone := len(p.Devices)+len(p.Processes) == 1
	write := func(title string, some, full api.Stall) {
		if !alone {
			text = fmt.Appendf(text, "%s\n", title)
		}
		text = fmt.Appendf(text, "some %v\nfull %v\n", some, full)
	}
	for _, d := range p.Devices {
		write("device "+d.Device, d.Some, d.Full)
	}
	for _, d := range p.Processes {
		write("process "+strconv.Itoa(d.PID), d.Some, d.Full)
	}
	return reply{status: http.StatusOK, text: true, body: text}, none, nil
}

// selectPressure leaves only the device or the process that a request names.
func (s *Server) selectPressure(p *api.Pressure, r request) error {
	devices, processes := p.Devices, p.Processes
	p.Devices, p.Processes = []api.DevicePressure{}, []api.ProcessPressure{}
	for i, d := range devices {
		if r.device != "" && (d.Device == r.device || strconv.Itoa(d.Index) == r.device) {
			p.Devices = devices[i : i+1]
		}
	}
	for i, d := range processes {
		if r.pid != 0 && d.PID == r.pid {
			p.Processes = processes[i : i+1]
		}
	}
	if r.device != "" && len(p.Devices) == 0 || r.pid != 0 && len(p.Processes) == 0 {
		return NotFound("read the pressure: there is no such device or process; 'giveway ps' and 'giveway doctor' list them")
	}
	return nil
}
