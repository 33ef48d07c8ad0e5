package amd

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"golang.org/x/sys/unix"
)

// debugMethod uses the debugger interface of a stock driver. The session of a process
// stays open from the first stop until the process is released: opening one takes long,
// and makes the GPU load its runlist again.
type debugMethod struct {
	driver *driver
	tracer Tracer

	mu       sync.Mutex
	sessions map[int]*sessionSlot
}

// sessionSlot holds the session of a process, or nil.
type sessionSlot struct {
	mu      sync.Mutex
	session *session
}

func newDebugMethod(d *driver, t Tracer) *debugMethod {
	return &debugMethod{driver: d, tracer: t, sessions: make(map[int]*sessionSlot)}
}

func (d *debugMethod) name() string { return "debug" }

func (d *debugMethod) slot(pid int) *sessionSlot {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[pid] == nil {
		d.sessions[pid] = &sessionSlot{}
	}
	return d.sessions[pid]
}

// open returns the session of a process, opened if there is none. s.mu is held.
func (d *debugMethod) open(s *sessionSlot, t *target) (*session, error) {
	if s.session != nil && !s.session.over() {
		return s.session, nil
	}
	opened, err := openSession(d.driver.file, d.tracer, t.pid)
	if err != nil {
		return nil, err
	}
	if t.gone() { // the pid belongs to another process now
		opened.close()
		return nil, hal.ErrGone
	}
	s.session = opened
	return opened, nil
}

// inSession calls do with the session of a process. A process that has called exec is no
// longer in a session although it is still traced: the driver then returns EINVAL, and do
// is repeated once in a new session. s.mu is held.
func (d *debugMethod) inSession(s *sessionSlot, t *target, do func(*session) error) error {
	for again := false; ; again = true {
		session, err := d.open(s, t)
		if err != nil {
			return err
		}
		if err = do(session); again || !errors.Is(err, unix.EINVAL) {
			return err
		}
		_ = session.close() // the driver has ended it already
	}
}

// prove opens a session, looks for the queue in it, and closes the session unless it was
// open before.
func (d *debugMethod) prove(_ *gpu, t target) error {
	s := d.slot(t.pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.session
	err := d.inSession(s, &t, func(session *session) error { return session.find(t.queue) })
	if s.session != nil && s.session != before {
		err = errors.Join(err, s.session.close())
		s.session = nil
	}
	return err
}

func (d *debugMethod) stop(pid int, queues []*queue) []error {
	s := d.slot(pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	err := d.inSession(s, &queues[0].target, func(session *session) error {
		var err error
		errs, err = session.suspend(queueIDs(queues))
		return err
	})
	if err != nil {
		return forAll(queues, err)
	}
	return errs
}

// start resumes queues. Without a session none are suspended: the driver has resumed them.
func (d *debugMethod) start(pid int, queues []*queue) []error {
	s := d.slot(pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || s.session.over() {
		return make([]error, len(queues))
	}
	errs, err := s.session.resume(queueIDs(queues))
	if err != nil {
		return forAll(queues, err)
	}
	return errs
}

func (d *debugMethod) release(pid int) error {
	d.mu.Lock()
	s := d.sessions[pid]
	delete(d.sessions, pid)
	d.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	return s.session.close()
}

func queueIDs(queues []*queue) []uint32 {
	ids := make([]uint32, len(queues))
	for i, q := range queues {
		ids[i] = q.target.queue
	}
	return ids
}

// suspend suspends queues. The driver refuses new queues as invalid until a snapshot has
// listed them, so refused queues are looked up in a snapshot and tried once more.
func (s *session) suspend(queues []uint32) ([]error, error) {
	var errs []error
	err := s.do(func() (err error) {
		if errs, err = kfd.Suspend(s.file, s.pid, queues, kfd.MinGrace); err != nil {
			return err
		}
		if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, kfd.ErrInvalidQueue) }) {
			return s.unmark(queues, errs)
		}
		listed, err := kfd.Snapshot(s.file, s.pid, kfd.MaskQueueNew)
		if err != nil {
			return err
		}
		for i, queue := range queues {
			if !errors.Is(errs[i], kfd.ErrInvalidQueue) {
				continue
			}
			if slices.Contains(listed, queue) {
				second, err := kfd.Suspend(s.file, s.pid, queues[i:i+1], kfd.MinGrace)
				if err != nil {
					return err
				}
				errs[i] = second[0]
			}
			if errors.Is(errs[i], kfd.ErrInvalidQueue) { // destroyed, or being destroyed
				errs[i] = fmt.Errorf("%w: %w", errs[i], hal.ErrGone)
			}
		}
		return s.unmark(queues, errs)
	})
	return errs, err
}

// unmark resumes the queues that the GPU failed to suspend: the driver has marked them as
// suspended nevertheless.
func (s *session) unmark(queues []uint32, errs []error) error {
	var failed []uint32
	for i, err := range errs {
		if errors.Is(err, kfd.ErrHardware) {
			failed = append(failed, queues[i])
		}
	}
	if len(failed) == 0 {
		return nil
	}
	_, err := kfd.Resume(s.file, s.pid, failed)
	return err
}

// resume resumes queues. An unknown queue is gone.
func (s *session) resume(queues []uint32) ([]error, error) {
	var errs []error
	err := s.do(func() (err error) {
		errs, err = kfd.Resume(s.file, s.pid, queues)
		for i, e := range errs {
			if errors.Is(e, kfd.ErrInvalidQueue) {
				errs[i] = fmt.Errorf("%w: %w", e, hal.ErrGone)
			}
		}
		return err
	})
	return errs, err
}

// find returns an error unless a snapshot lists the queue. The snapshot makes a new queue
// suspendable.
func (s *session) find(queue uint32) error {
	return s.do(func() error {
		listed, err := kfd.Snapshot(s.file, s.pid, kfd.MaskQueueNew)
		if err == nil && !slices.Contains(listed, queue) {
			err = fmt.Errorf("queue %d is not in the snapshot: %w", queue, hal.ErrGone)
		}
		return err
	})
}
