package amd

import (
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Tracer traces the first thread of processes, for the thread that calls.
type Tracer interface {
	// Seize begins, and the process goes on.
	Seize(pid int) error
	// Attend lets the process go on with what it has stopped for, if it has: a
	// signal is delivered, and a stop by job control stays one. False: it has ended.
	Attend(pid int) bool
	// News says when there may be something to attend to, until stop is called.
	News() (news <-chan os.Signal, stop func())
	// Release is called at the end, by the same thread.
	Release(pid int)
}

// Ptrace is the kernel's.
type Ptrace struct{}

// Seize implements Tracer. The process neither stops nor gets a signal.
func (Ptrace) Seize(pid int) error { return ptrace(unix.PTRACE_SEIZE, pid, 0) }

// News implements Tracer: a traced process that stops is told like a child that does.
func (Ptrace) News() (<-chan os.Signal, func()) {
	news := make(chan os.Signal, 1)
	signal.Notify(news, unix.SIGCHLD)
	return news, func() { signal.Stop(news) }
}

// Release implements Tracer. There is nothing to do: the process is let go when
// the thread ends, and need not be stopped, as it must for PTRACE_DETACH. That
// would be seen: some system calls end early when a process was stopped.
func (Ptrace) Release(int) {}

// Attend implements Tracer.
func (Ptrace) Attend(pid int) bool {
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
			case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU: // it stays stopped, as somebody wants
				request = unix.PTRACE_LISTEN
			}
		}
		_ = ptrace(request, pid, sig) // if it was killed meanwhile, the next look tells
	}
}

func ptrace(request uintptr, pid, data int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(pid), 0, uintptr(data), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
