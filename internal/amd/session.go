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

// session is a debug session of a process. It has an OS thread of its own, because the
// driver accepts calls only from the thread that traces the process, and because the
// kernel ends the tracing without stopping the process when that thread exits.
//
// The thread also serves the process: it forwards the signals for which a traced process
// stops, and answers the driver, for which the process waits when its runtime starts or
// ends.
type session struct {
	file   kfd.Ioctler
	tracer Tracer
	pid    int

	calls chan func() // to be run on the thread
	quit  chan struct{}
	ended chan struct{} // closed when all is undone except the tracing
	once  sync.Once
	tid   int
	err   error // of the end; valid once ended is closed
}

var errProcessEnded = fmt.Errorf("the process has ended: %w", hal.ErrGone)

// openSession traces a process and opens a debug session of it.
func openSession(file kfd.Ioctler, tracer Tracer, pid int) (*session, error) {
	s := &session{file: file, tracer: tracer, pid: pid, calls: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	opened := make(chan error)
	onNewThread(func() { s.run(opened) })
	if err := <-opened; err != nil {
		s.waitThread()
		return nil, err
	}
	return s, nil
}

// threadExitTime is how long a thread that has nothing left to do may take to exit.
const threadExitTime = time.Second

// waitThread waits until the thread has exited, which ends the tracing.
func (s *session) waitThread() {
	<-s.ended
	for end := time.Now().Add(threadExitTime); unix.Tgkill(unix.Getpid(), s.tid, 0) == nil && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

// onNewThread runs f on a thread that exits when f returns. That cannot be the first
// thread of the process, which never exits.
func onNewThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return // without unlocking, so the thread exits
		}
		started := make(chan struct{})
		go func() { // gets another thread, because this goroutine keeps the first
			runtime.LockOSThread()
			close(started)
			f()
		}()
		<-started
		runtime.UnlockOSThread()
	}()
}

// run opens the session, reports the result to opened, and serves the session until it
// ends.
func (s *session) run(opened chan<- error) {
	defer close(s.ended)
	s.tid = unix.Gettid()
	defer s.tracer.Release(s.pid)
	signals, stop := s.tracer.Signals()
	defer stop()
	if err := s.tracer.Seize(s.pid); err != nil {
		opened <- fmt.Errorf("trace process %d: %w", s.pid, traceError(err))
		return
	}
	events, reader, err := newPipe()
	if err != nil {
		opened <- err
		return
	}
	defer reader.Close()
	defer unix.Close(events) // the driver has its own reference
	raised := make(chan struct{}, 1)
	go notify(reader, raised)
	ready, err := kfd.EnableDebug(s.file, s.pid, kfd.MaskProcessRuntime, events)
	if err != nil {
		if errors.Is(err, unix.EINVAL) { // the hardware scheduler is off
			err = fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
		}
		opened <- debugError(err)
		return
	}
	defer func() { s.err = ignoreGone(debugError(kfd.DisableDebug(s.file, s.pid))) }()
	if !ready {
		opened <- fmt.Errorf("process %d has no runtime that can be debugged: %w", s.pid, hal.ErrNotSupported)
		return
	}
	opened <- nil
	for {
		select {
		case call := <-s.calls:
			call()
		case <-raised:
			s.answerRuntime()
		case <-signals:
		case <-s.quit:
			return
		}
		if !s.tracer.Continue(s.pid) {
			return
		}
	}
}

// answerRuntime lets the process continue if its runtime waits for the debugger.
func (s *session) answerRuntime() {
	for {
		mask, err := kfd.QueryEvent(s.file, s.pid, kfd.MaskProcessRuntime)
		if err != nil {
			return // EAGAIN: no more events
		}
		if mask&kfd.MaskProcessRuntime == 0 || kfd.SendRuntimeEvent(s.file, s.pid, kfd.MaskProcessRuntime) != nil {
			return
		}
	}
}

// do makes a call on the session's thread.
func (s *session) do(call func() error) error {
	done := make(chan error, 1)
	select {
	case s.calls <- func() { done <- call() }:
		return debugError(<-done)
	case <-s.ended:
		return errProcessEnded
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

// close ends the session: all queues are resumed and the process is no longer traced. A
// second call has no effect.
func (s *session) close() error {
	s.once.Do(func() { close(s.quit) })
	s.waitThread()
	return s.err
}

// newPipe returns a pipe for the driver to write to, without ever blocking.
func newPipe() (int, *os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return ends[1], os.NewFile(uintptr(ends[0]), "KFD events"), nil
}

// notify reports to raised that something was written to the pipe, until it is closed.
func notify(r *os.File, raised chan<- struct{}) {
	buf := make([]byte, 64)
	for {
		if _, err := r.Read(buf); err != nil {
			return
		}
		select {
		case raised <- struct{}{}:
		default:
		}
	}
}

// debugError classifies an error of the debugger interface.
func debugError(err error) error {
	switch {
	case err == nil, errors.Is(err, hal.ErrGone), errors.Is(err, hal.ErrNotSupported):
		return err
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // EINVAL: the process has called exec
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	case errors.Is(err, unix.EALREADY):
		return fmt.Errorf("another debugger is attached: %w", err)
	}
	return err
}

// traceError classifies an error of ptrace. EPERM means that another debugger is attached,
// or that the system forbids tracing.
func traceError(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	}
	return err
}
