// Package top is the screen of giveway top: which process has which part of each device,
// live. State is the whole of it: snapshots of the daemon and keys go in, the text of the
// screen comes out. Run connects it to a terminal and a daemon.
package top

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

// Source is a daemon.
type Source interface {
	Processes(ctx context.Context) ([]api.Process, error)
	Status(ctx context.Context) (api.Status, error)
	Change(ctx context.Context, pid int, change api.Change) (api.Process, error)
	Record(ctx context.Context, q api.RecordQuery) (api.Record, error)
	Delays(ctx context.Context) (api.Delays, error)
	Pressure(ctx context.Context) (api.Pressure, error)
}

// Snapshot is what a daemon said at one time.
type Snapshot struct {
	At        time.Time
	Processes []api.Process
	Status    api.Status
	Delays    *api.Delays   // nil: the daemon is older than them
	Pressure  *api.Pressure // the same
	Requests  []api.Entry   // those that ended since the last snapshot; not more than the last requestLimit
}

// requestLimit is how many requests are read for a snapshot. Of more, the last ones stand
// for all.
const requestLimit = 2000

// Reader takes snapshots of a daemon.
type Reader struct {
	source Source
	next   uint64    // of the record
	began  time.Time // of the daemon whose record next is in
}

// NewReader returns a reader of a daemon.
func NewReader(source Source) *Reader { return &Reader{source: source} }

// Read takes a snapshot.
func (r *Reader) Read(ctx context.Context) (s Snapshot, err error) {
	if s.Status, err = r.source.Status(ctx); err != nil {
		return s, err
	}
	if s.Processes, err = r.source.Processes(ctx); err != nil {
		return s, err
	}
	s.At = time.Now()
	if s.Delays, err = Delays(ctx, r.source); s.Delays == nil {
		return s, err
	}
	pressure, err := r.source.Pressure(ctx)
	if err != nil {
		return s, err
	}
	s.Pressure = &pressure
	return s, r.readRequests(ctx, &s)
}

// readRequests reads the requests that ended since the last snapshot. A new daemon counts
// the entries of its record anew.
func (r *Reader) readRequests(ctx context.Context, s *Snapshot) error {
	if !s.Delays.Began.Equal(r.began) {
		r.next, r.began = 0, s.Delays.Began
	}
	part, err := r.source.Record(ctx, api.RecordQuery{After: r.next, Kinds: []api.EntryKind{api.KindRequest}, Last: true, Limit: requestLimit})
	if err != nil {
		return err
	}
	if r.next > 0 { // the first time they are of an unknown period
		s.Requests = part.Entries
	}
	r.next = part.Next
	return nil
}

// Delays reads which processes waited for which; nil: the daemon is older than delays.
func Delays(ctx context.Context, source Source) (*api.Delays, error) {
	delays, err := source.Delays(ctx)
	switch {
	case tooOld(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &delays, nil
}

// Orders reads the orders in the daemon's record; nil: the daemon is older than the record.
func Orders(ctx context.Context, source Source) (*api.Record, error) {
	orders, err := source.Record(ctx, api.RecordQuery{Kinds: []api.EntryKind{api.KindOrder}, Last: true, Limit: api.MaxRecordLimit})
	switch {
	case tooOld(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &orders, nil
}

// tooOld reports whether a daemon does not know a request.
func tooOld(err error) bool {
	var refusal *client.Error
	return errors.As(err, &refusal) && refusal.Status == http.StatusNotFound
}

// Look says what a terminal can show.
type Look struct {
	Colour bool
	UTF8   bool // more characters than ASCII
}
