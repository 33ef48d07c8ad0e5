// Package hint tells Giveway what a program knows about its own work: how urgent it is, when
// the next work will arrive, when a request begins and ends. It is for Go programs, into
// which the shim cannot be loaded.
//
// A hint is a few stores to memory that the daemon reads, and one system call if the daemon
// sleeps. Only Connect waits. Without a daemon a hint does nothing. docs/HINTS.md says what
// each hint means.
package hint

import (
	"context"
	"errors"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pageclient"
)

// Session gives hints for this process. All sessions of a process are the same one. It is
// safe for concurrent use.
type Session struct {
	page   *pageclient.Page
	sender *sender // instead of the page, if the shim has the process's page
}

// Connect looks for the daemon where the commands do: at GIVEWAY_SOCKET, else at the
// system-wide socket, else at the user's own. The returned session is never nil and can be
// used even with an error, which says why hints have no effect for now. A daemon that starts
// later is found by a later hint, within about a second, and gets the hints that still hold.
func Connect(ctx context.Context) (*Session, error) {
	return connect(ctx, pageclient.ProcessPage())
}

func connect(ctx context.Context, page *pageclient.Page) (*Session, error) {
	s := &Session{page: page}
	err := page.Connect(ctx)
	if errors.Is(err, pageclient.ErrLibrary) {
		s.sender = processSender()
		err = s.sender.connect(ctx)
	}
	return s, err
}

// Connected reports whether there is a daemon now.
func (s *Session) Connected() bool {
	if s.sender != nil {
		return s.sender.connected.Load()
	}
	return s.page.Connected()
}

// Priority sets the priority of the process: a higher one runs first.
func (s *Session) Priority(n int32) {
	s.give(pageabi.HintPriority, int64(n), attr.Priority.Of(int64(n)))
}

// Deadline sets how long after the process becomes ready its work must be done. Zero means
// no deadline.
func (s *Session) Deadline(d time.Duration) {
	s.give(pageabi.HintDeadline, int64(d), attr.Deadline.Of(int64(d)))
}

// Laxity says how long the process's work can wait. Zero means unknown.
func (s *Session) Laxity(d time.Duration) {
	s.give(pageabi.HintLaxity, int64(d), attr.Laxity.Of(int64(d)))
}

// Work says how much device time a request needs. Zero means unknown.
func (s *Session) Work(d time.Duration) { s.give(pageabi.HintWork, int64(d), attr.Work.Of(int64(d))) }

// Expect says how long from now the next work will arrive. Zero means unknown.
func (s *Session) Expect(in time.Duration) {
	s.give(pageabi.HintExpect, pageclient.After(in), attr.Expect.Of(int64(in)))
}

// SLO sets how long a request may take. Zero means no SLO.
func (s *Session) SLO(d time.Duration) {
	s.give(pageabi.HintSLO, int64(d), attr.SLO.Of(int64(d)))
}

// Idempotent says whether commands launched from now on may run twice. At the start they may
// not.
func (s *Session) Idempotent(on bool) {
	value := int64(0)
	if on {
		value = 1
	}
	s.give(pageabi.HintIdempotent, value, attr.Idempotent.Of(value))
}

// Begin says that a request begins. The returned function says that it ends; only its first
// call counts. Requests may overlap.
//
//	defer session.Begin()()
func (s *Session) Begin() (end func()) {
	if s.sender != nil {
		return s.sender.begin()
	}
	return s.page.Begin()
}

func (s *Session) give(kind pageabi.HintKind, value int64, v attr.Values) {
	if s.sender != nil {
		s.sender.post(api.Hint{Values: v})
		return
	}
	s.page.Hint(kind, value)
}
