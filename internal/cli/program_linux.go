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

// forwarded are the signals that are forwarded to the program.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT,
}

// runProgram runs a program to its end, in this process's session and process group and
// with its files.
//
// With exec in place of a child no process would be left to announce the program to a
// daemon that is restarted.
func runProgram(path string, args, env []string) error {
	signals := make(chan os.Signal, 64)
	for _, s := range forwarded {
		if !signal.Ignored(s) { // as under nohup: the program ignores it as well
			signal.Notify(signals, s)
		}
	}
	// If this process is killed, the kernel kills the program: Pdeathsig. For the kernel
	// the parent is the thread that started it.
	runtime.LockOSThread()
	p, err := os.StartProcess(path, args, &os.ProcAttr{
		Env:   env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return ended{code: exitCannotRun, err: fmt.Errorf("run %s: %w", args[0], rootCause(err))}
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

// follow reports each time that a child stops, and at last how it ended.
func follow(pid int, changes chan<- syscall.WaitStatus) {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil { // SIGCHLD is ignored: the exit status is lost
			ws = 0
		}
		changes <- ws
		if err != nil || !ws.Stopped() {
			return
		}
	}
}

// fromKeyboard reports whether the terminal sent a signal to its whole foreground group,
// so that the program has received it already. Go does not report the sender, so in the
// foreground of a terminal these signals are assumed to come from it: a second interrupt
// makes many programs skip their cleanup.
func fromKeyboard(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		return inForeground()
	}
	return false
}

// inForeground reports whether this process is in the foreground group of a terminal.
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

// stopAsWell stops this process if the terminal stopped the program, so that the shell
// sees that its job has stopped. The SIGCONT that follows is forwarded.
func stopAsWell(s syscall.Signal) {
	if s == syscall.SIGTSTP || s == syscall.SIGTTIN || s == syscall.SIGTTOU {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it cannot fail
	}
}

// dieBy ends this process by the signal that ended the program, so that its parent sees
// the same status. It returns if the signal does not end a process.
func dieBy(s syscall.Signal) {
	// A core dump of this process would be of no use.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	signal.Reset(s)
	setDefault(s)
	if syscall.Kill(os.Getpid(), s) == nil {
		// The signal is pending on some thread: wait until it is delivered.
		for range 100 {
			runtime.Gosched()
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 1e6}, nil)
		}
	}
}
