package amd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"golang.org/x/sys/unix"
)

// session is a debug session of a process. It has an OS thread for life: the
// driver wants the very thread that traces the process, and what a thread traces
// is let go when the thread ends, without the process being stopped for that.
//
// While it lasts the thread attends to the process: it passes on the signals that
// a traced process stops for, and answers the driver, for which the process waits
// when its runtime starts or ends.
type session struct {
	file   kfd.Ioctler
	tracer Tracer
	pid    int

	calls chan func() // for the thread
	quit  chan struct{}
	ended chan struct{} // closed with everything undone but for the tracing
	once  sync.Once
	tid   int   // the thread
	final error // of the end; to be read when it is over
}

// errEnded is for a session whose process has ended.
var errEnded = fmt.Errorf("the process has ended: %w", hal.ErrGone)

// openSession traces a process and opens a debug session of it.
func openSession(file kfd.Ioctler, tracer Tracer, pid int) (*session, error) {
	s := &session{file: file, tracer: tracer, pid: pid, calls: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	began := make(chan error)
	onOwnThread(func() { s.live(began) })
	if err := <-began; err != nil {
		s.await()
		return nil, err
	}
	return s, nil
}

// await waits until the thread is gone, and with it the tracing.
func (s *session) await() {
	<-s.ended
	for end := time.Now().Add(threadEnd); unix.Tgkill(unix.Getpid(), s.tid, 0) == nil && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

// threadEnd is how long a thread that has nothing left to do may take to end.
const threadEnd = time.Second

// onOwnThread runs f on a thread that ends with it. The process's first thread
// never ends, so it is not that.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return // still locked: the thread ends
		}
		settled := make(chan struct{})
		go func() { // on another, while this one is kept
			runtime.LockOSThread()
			close(settled)
			f()
		}()
		<-settled
		runtime.UnlockOSThread()
	}()
}

// live is the thread's life. Whether the session could be opened is told in began.
func (s *session) live(began chan<- error) {
	defer close(s.ended)
	s.tid = unix.Gettid()
	defer s.tracer.Release(s.pid)
	news, stop := s.tracer.News()
	defer stop()
	if err := s.tracer.Seize(s.pid); err != nil {
		began <- fmt.Errorf("trace process %d: %w", s.pid, traceError(err))
		return
	}
	events, reader, err := newPipe()
	if err != nil {
		began <- err
		return
	}
	defer reader.Close()
	defer unix.Close(events) // the driver has its own
	told := make(chan struct{}, 1)
	go tell(reader, told)
	ready, err := kfd.EnableDebug(s.file, s.pid, kfd.MaskProcessRuntime, events)
	if err != nil {
		if errors.Is(err, unix.EINVAL) { // the hardware scheduler is off
			err = fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
		}
		began <- debugError(err)
		return
	}
	defer func() { s.final = undone(debugError(kfd.DisableDebug(s.file, s.pid))) }()
	if !ready {
		began <- fmt.Errorf("process %d has no runtime that can be debugged: %w", s.pid, hal.ErrNotSupported)
		return
	}
	began <- nil
	for {
		select {
		case call := <-s.calls:
			call()
		case <-told:
			s.answer()
		case <-news:
		case <-s.quit:
			return
		}
		if !s.tracer.Attend(s.pid) {
			return
		}
	}
}

// answer lets the process go on if its runtime waits for us.
func (s *session) answer() {
	for {
		mask, err := kfd.QueryEvent(s.file, s.pid, kfd.MaskProcessRuntime)
		if err != nil {
			return // EAGAIN: there is no more
		}
		if mask&kfd.MaskProcessRuntime == 0 || kfd.SendRuntimeEvent(s.file, s.pid, kfd.MaskProcessRuntime) != nil {
			return
		}
	}
}

// do makes a call on the thread.
func (s *session) do(call func() error) error {
	done := make(chan error, 1)
	select {
	case s.calls <- func() { done <- call() }:
		return debugError(<-done)
	case <-s.ended:
		return errEnded
	}
}

// over reports whether the session has ended.
func (s *session) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// close ends the session: everything is resumed and the process is not traced any
// more. Twice equals once.
func (s *session) close() error {
	s.once.Do(func() { close(s.quit) })
	s.await()
	return s.final
}

// newPipe returns a pipe for the driver to write to: a write never waits.
func newPipe() (int, *os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return ends[1], os.NewFile(uintptr(ends[0]), "KFD events"), nil
}

// tell passes on that something was written, until the pipe is closed.
func tell(r *os.File, told chan<- struct{}) {
	buf := make([]byte, 64)
	for {
		if _, err := r.Read(buf); err != nil {
			return
		}
		select {
		case told <- struct{}{}:
		default:
		}
	}
}

// debugError says what a failure of the debugger interface means.
func debugError(err error) error {
	switch {
	case err == nil, errors.Is(err, hal.ErrGone), errors.Is(err, hal.ErrNotSupported):
		return err
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // EINVAL: it has run another program since
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	case errors.Is(err, unix.EALREADY):
		return fmt.Errorf("somebody else debugs it: %w", err)
	}
	return err
}

// traceError does so for ptrace: EPERM is of somebody else's debugger, or of a
// rule of the system's.
func traceError(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	}
	return err
}
