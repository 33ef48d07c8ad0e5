// Package hint tells Giveway what a program knows of its own work: how urgent it is,
// when the next of it will come, when a request begins and ends. It is for programs in
// Go, into which the preload library cannot be loaded.
//
// A hint is a few stores to memory that the daemon reads, and one system call if the
// daemon sleeps. Nothing here waits, but for Connect; without a daemon nothing happens.
// docs/HINTS.md says what each hint means.
package hint

import (
	"context"
	"errors"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/shim/pageclient"
)

// Session is this process's way to tell. All sessions of a process are one. It is safe
// for concurrent use.
type Session struct {
	page *pageclient.Page
	mail *mail // in place of the page, where the preload library has it
}

// Connect looks for the daemon where commands do: at GIVEWAY_SOCKET, or the machine's,
// or the user's pageclient. The session is never nil and can be used whatever the error, which
// says why hints go nowhere for now. A daemon that comes later is found at a later hint,
// within a second or so; hints that stand are told to it then.
func Connect(ctx context.Context) (*Session, error) {
	return connect(ctx, pageclient.OfProcess())
}

func connect(ctx context.Context, page *pageclient.Page) (*Session, error) {
	s := &Session{page: page}
	err := page.Connect(ctx)
	if errors.Is(err, pageclient.ErrLibrary) {
		s.mail = mailOfProcess()
		err = s.mail.connect(ctx)
	}
	return s, err
}

// Connected reports whether a daemon listens now.
func (s *Session) Connected() bool {
	if s.mail != nil {
		return s.mail.connected.Load()
	}
	return s.page.Connected()
}

// Priority says how urgent the program's work is: higher runs first.
func (s *Session) Priority(n int32) { s.tell(pageclient.Priority, int64(n), api.Hint{Priority: &n}) }

// Deadline says how long after it becomes ready its work must be done; 0: no matter.
func (s *Session) Deadline(d time.Duration) {
	s.tell(pageclient.Deadline, int64(d), api.Hint{Deadline: &d})
}

// Laxity says how long its work can wait; 0: not known.
func (s *Session) Laxity(d time.Duration) { s.tell(pageclient.Laxity, int64(d), api.Hint{Laxity: &d}) }

// Work says how much device time a request needs; 0: not known.
func (s *Session) Work(d time.Duration) { s.tell(pageclient.Work, int64(d), api.Hint{Work: &d}) }

// Expect says that the next work will come so long from now; 0: not known.
func (s *Session) Expect(in time.Duration) {
	s.tell(pageclient.Expect, pageclient.In(in), api.Hint{Expect: &in})
}

// SLO says how long a request may take; 0: no matter.
func (s *Session) SLO(d time.Duration) {
	if s.mail != nil {
		s.mail.post(letter{change: &api.Change{SLO: &d}})
		return
	}
	s.page.Hint(pageclient.SLO, int64(d))
}

// Idempotent says whether what is launched from now on may be run twice. At the start
// it may not.
func (s *Session) Idempotent(on bool) {
	value := int64(0)
	if on {
		value = 1
	}
	s.tell(pageclient.Idempotent, value, api.Hint{Idempotent: &on})
}

// Begin tells that a request begins. The function it returns tells that it is over;
// twice equals once. Requests may overlap.
//
//	defer session.Begin()()
func (s *Session) Begin() (end func()) {
	if s.mail != nil {
		return s.mail.begin()
	}
	return s.page.Begin()
}

func (s *Session) tell(kind pageclient.Kind, value int64, h api.Hint) {
	if s.mail != nil {
		s.mail.post(letter{hint: &h})
		return
	}
	s.page.Hint(kind, value)
}
