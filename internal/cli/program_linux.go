package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// passed are the signals that are passed on to the program.
var passed = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT,
}

// runProgram runs a program to its end, as if it had been started in our place:
// in our session and process group, with our files.
//
// To become the program with exec would be simpler still, but then nobody could
// tell a daemon that is started again of it.
func runProgram(path string, args, env []string) error {
	signals := make(chan os.Signal, 64)
	for _, s := range passed {
		if !signal.Ignored(s) { // nohup: what we ignore, the program is to ignore as well
			signal.Notify(signals, s)
		}
	}
	// The program dies with us if we are killed, as it would if it were us. The
	// kernel takes "us" to be the thread that started it.
	runtime.LockOSThread()
	p, err := os.StartProcess(path, args, &os.ProcAttr{
		Env:   env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		var wrapped *os.PathError
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return ended{code: exitCannotRun, err: fmt.Errorf("run %s: %w", args[0], err)}
	}
	changes := make(chan syscall.WaitStatus)
	go follow(p.Pid, changes)
	for {
		select {
		case s := <-signals:
			if !fromKeyboard(s) {
				_ = p.Signal(s) // it may have ended
			}
		case ws := <-changes:
			switch {
			case ws.Stopped():
				stopAsWell(ws.StopSignal())
			case ws.Signaled():
				return ended{signal: ws.Signal()}
			case ws.ExitStatus() != 0:
				return ended{code: ws.ExitStatus()}
			default:
				return nil
			}
		}
	}
}

// follow tells each time that a child stops, and then how it ended.
func follow(pid int, changes chan<- syscall.WaitStatus) {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil { // somebody had us ignore SIGCHLD: how it ended is lost
			ws = 0
		}
		changes <- ws
		if err != nil || !ws.Stopped() {
			return
		}
	}
}

// fromKeyboard reports whether a signal is one that the terminal sends to all of
// its foreground group, so that the program has it already. Go does not tell who
// sent a signal. A second interrupt makes many programs give up on an orderly
// end, so where there is a terminal these are taken to come from it.
func fromKeyboard(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		return inForeground()
	}
	return false
}

// inForeground reports whether we belong to the foreground group of a terminal.
func inForeground() bool {
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	// pid (name) state ppid pgrp session tty tpgid ...: proc(5)
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 6 {
		return false
	}
	foreground, err := strconv.Atoi(fields[5])
	return err == nil && foreground > 0 && fields[2] == fields[5]
}

// stopAsWell stops us if the terminal stopped the program, so that the shell sees
// that its job has stopped. The SIGCONT that ends it is passed on.
func stopAsWell(s syscall.Signal) {
	if s == syscall.SIGTSTP || s == syscall.SIGTTIN || s == syscall.SIGTTOU {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it cannot fail
	}
}

// dieBy ends this process by a signal, so that whoever waits for it sees what
// became of the program. It returns if the signal is not one to die by.
func dieBy(s syscall.Signal) {
	// The program has left a core if there was to be one; ours says nothing.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	signal.Reset(s)
	setDefault(s)
	if syscall.Kill(os.Getpid(), s) == nil {
		// A signal to oneself has arrived when the call returns, on one thread
		// or another: give that one a moment.
		for range 100 {
			runtime.Gosched()
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 1e6}, nil)
		}
	}
}
