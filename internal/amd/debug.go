package amd

import (
	"errors"
	"fmt"
	"sync"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"golang.org/x/sys/unix"
)

// debugWay is the stock driver's debugger interface. A process whose queues were
// stopped stays in a session until it is given up: to open one takes long, and
// tells the GPU its runlist anew.
type debugWay struct {
	driver *Driver
	tracer Tracer

	mu       sync.Mutex
	sessions map[int]*held
}

// held is where the session of a process is, if there is one.
type held struct {
	mu      sync.Mutex
	session *session
}

func (d *debugWay) name() string { return "debug" }

func (d *debugWay) of(pid int) *held {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[pid] == nil {
		d.sessions[pid] = &held{}
	}
	return d.sessions[pid]
}

// open returns the session of a process, which it opens if there is none. h.mu is
// held.
func (d *debugWay) open(h *held, t *Target) (*session, error) {
	if h.session != nil && !h.session.over() {
		return h.session, nil
	}
	s, err := openSession(d.driver.file, d.tracer, t.PID)
	if err != nil {
		return nil, err
	}
	if t.gone() { // it is somebody else's number
		s.close()
		return nil, hal.ErrGone
	}
	h.session = s
	return s, nil
}

// with does something in the session of a process. A process that has run another
// program since is in no session any more, though we trace it still: then a new one
// is opened, once. h.mu is held.
func (d *debugWay) with(h *held, t *Target, do func(*session) error) error {
	for again := false; ; again = true {
		s, err := d.open(h, t)
		if err != nil {
			return err
		}
		if err = do(s); again || !errors.Is(err, unix.EINVAL) {
			return err
		}
		_ = s.close() // of what is no more there is nothing to undo
	}
}

// prove opens a session, looks for the queue there, and leaves things as they were.
func (d *debugWay) prove(_ *Device, t Target) error {
	h := d.of(t.PID)
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.session
	err := d.with(h, &t, func(s *session) error { return s.find(t.Queue) })
	if h.session != nil && h.session != was {
		err = errors.Join(err, h.session.close())
		h.session = nil
	}
	return err
}

func (d *debugWay) stop(pid int, queues []*queue) []error {
	h := d.of(pid)
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	err := d.with(h, &queues[0].target, func(s *session) error {
		var err error
		errs, err = s.suspend(ids(queues), queues[0].device.grace())
		return err
	})
	if err != nil {
		return all(queues, err)
	}
	return errs
}

// start resumes. Where there is no session nothing is suspended: the driver has
// put everything back.
func (d *debugWay) start(pid int, queues []*queue) []error {
	h := d.of(pid)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil || h.session.over() {
		return make([]error, len(queues))
	}
	errs, err := h.session.resume(ids(queues))
	if err != nil {
		return all(queues, err)
	}
	return errs
}

func (d *debugWay) leave(pid int) error {
	d.mu.Lock()
	h := d.sessions[pid]
	delete(d.sessions, pid)
	d.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		return nil
	}
	return h.session.close()
}

func ids(queues []*queue) []uint32 {
	found := make([]uint32, len(queues))
	for i, q := range queues {
		found[i] = q.target.Queue
	}
	return found
}

// suspend takes queues off. What is refused as new, or as gone, is looked for in a
// snapshot, which makes new ones old, and tried once more.
func (s *session) suspend(queues []uint32, grace kfd.Grace) ([]error, error) {
	errs := make([]error, len(queues))
	err := s.do(func() error {
		came, err := kfd.Suspend(s.file, s.pid, queues, grace)
		if err != nil {
			return err
		}
		again := refused(came)
		copy(errs, came)
		if len(again) == 0 {
			return s.unmark(queues, errs)
		}
		there, err := kfd.Snapshot(s.file, s.pid, kfd.MaskQueueNew)
		if err != nil {
			return err
		}
		for _, i := range again {
			if !lists(there, queues[i]) {
				errs[i] = fmt.Errorf("%w: %w", came[i], hal.ErrGone)
				continue
			}
			second, err := kfd.Suspend(s.file, s.pid, queues[i:i+1], grace)
			if err != nil {
				return err
			}
			if errs[i] = second[0]; errors.Is(second[0], kfd.ErrInvalidQueue) { // it is being destroyed
				errs[i] = fmt.Errorf("%w: %w", second[0], hal.ErrGone)
			}
		}
		return s.unmark(queues, errs)
	})
	return errs, err
}

// unmark resumes what the GPU failed to take off, which the driver has marked as
// suspended all the same.
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

// refused are the places of those that the driver called invalid.
func refused(errs []error) []int {
	var at []int
	for i, err := range errs {
		if errors.Is(err, kfd.ErrInvalidQueue) {
			at = append(at, i)
		}
	}
	return at
}

func lists(entries []kfd.Entry, queue uint32) bool {
	for _, e := range entries {
		if e.Queue == queue {
			return true
		}
	}
	return false
}

// resume puts queues back. One that is unknown has gone.
func (s *session) resume(queues []uint32) ([]error, error) {
	errs := make([]error, len(queues))
	err := s.do(func() error {
		came, err := kfd.Resume(s.file, s.pid, queues)
		copy(errs, came)
		for i, e := range came {
			if errors.Is(e, kfd.ErrInvalidQueue) {
				errs[i] = fmt.Errorf("%w: %w", e, hal.ErrGone)
			}
		}
		return err
	})
	return errs, err
}

// find looks for a queue in a snapshot, which makes it one that can be suspended.
func (s *session) find(queue uint32) error {
	return s.do(func() error {
		there, err := kfd.Snapshot(s.file, s.pid, kfd.MaskQueueNew)
		if err == nil && !lists(there, queue) {
			err = fmt.Errorf("queue %d is not in the snapshot: %w", queue, hal.ErrGone)
		}
		return err
	})
}
