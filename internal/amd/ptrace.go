package amd

import (
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Tracer traces the first thread of processes. All methods but Signals must be called on
// the same OS thread.
type Tracer interface {
	// Seize begins to trace a process, which keeps running.
	Seize(pid int) error
	// Continue lets the process continue if it has stopped. A signal is delivered, and a
	// process stopped by job control stays stopped. It returns false if the process has
	// ended.
	Continue(pid int) bool
	// Signals returns a channel that receives when a process may have stopped, until stop
	// is called.
	Signals() (signals <-chan os.Signal, stop func())
	// Release ends the tracing.
	Release(pid int)
}

// Ptrace is the Tracer of the kernel.
type Ptrace struct{}

// Seize implements Tracer. The process neither stops nor gets a signal.
func (Ptrace) Seize(pid int) error { return ptrace(unix.PTRACE_SEIZE, pid, 0) }

// Signals implements Tracer: the kernel sends SIGCHLD when a traced process stops.
func (Ptrace) Signals() (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	return signals, func() { signal.Stop(signals) }
}

// Release implements Tracer. It does nothing, because the exit of the thread ends the
// tracing. PTRACE_DETACH would require the process to be stopped, which the process could
// notice: some system calls return early after a stop.
func (Ptrace) Release(int) {}

// Continue implements Tracer.
func (Ptrace) Continue(pid int) bool {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil, got == pid && (status.Exited() || status.Signaled()):
			return false
		case got != pid:
			return true // it runs
		}
		request, sig := uintptr(unix.PTRACE_CONT), int(status.StopSignal())
		if int(status)>>16 == unix.PTRACE_EVENT_STOP {
			sig = 0
			switch status.StopSignal() {
			case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU: // stopped by job control
				request = unix.PTRACE_LISTEN
			}
		}
		_ = ptrace(request, pid, sig) // if the process was killed meanwhile, the next Wait4 tells
	}
}

func ptrace(request uintptr, pid, data int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(pid), 0, uintptr(data), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
