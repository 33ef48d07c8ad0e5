package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/safepath"
)

const (
	controlProgram = "nvidia-cuda-mps-control"
	// controlComm is its name as the kernel has it, which cuts it, and the server's, to this.
	controlComm = "nvidia-cuda-mps"

	commandTime = 10 * time.Second // that a command of the control program may take
	quitTime    = 10 * time.Second // until a control daemon that was told to quit has exited
)

// startTime is how long it may take until a control daemon that was started is there. A test
// sets it.
var startTime = 5 * time.Second

// noControlError means that there is no control daemon on a pipe folder. Any other error of
// findControl means that it is not known whether there is one.
type noControlError struct{ error }

func (e noControlError) Unwrap() error { return e.error }

// control returns the pid of the pool's control daemon; zero: there is none. An error means that
// it is not known: the files of one that runs must not be removed.
func (p *Pool) control() (int, error) {
	pid, err := findControl(p.pipe())
	if errors.As(err, new(noControlError)) {
		return 0, nil
	}
	return pid, err
}

// controlPID returns the pid of the control daemon on a pipe folder; zero: there is none, or its
// file cannot be read. It is for the default folder, where another user may have put anything.
func controlPID(pipe string) int {
	pid, err := findControl(pipe)
	if err != nil {
		return 0
	}
	return pid
}

// findControl returns the pid of the control daemon on a pipe folder, or why there is none.
// The daemon writes it to a file that a killed daemon leaves behind. The default folder is
// in /tmp, where another user may have put anything under that name. As daemons do, it may
// clear its umask: then others may write the file.
func findControl(pipe string) (int, error) {
	text, err := safepath.ReadUntrusted(filepath.Join(pipe, controlProgram+".pid"), 32)
	if errors.Is(err, os.ErrNotExist) {
		return 0, noControlError{err}
	}
	if err != nil {
		return 0, fmt.Errorf("find the MPS control daemon: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, noControlError{fmt.Errorf("%s.pid has %q, which is no pid", controlProgram, text)}
	}
	// "pid (name) state ...": a zombie is not alive, and another program may have the pid.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		err = fmt.Errorf("%s.pid names process %d: %w", controlProgram, pid, err)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return 0, noControlError{err}
		}
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), " ("+controlComm+") ")
	if rest == "" || rest[0] == 'Z' || rest[0] == 'X' {
		return 0, noControlError{fmt.Errorf("%s.pid names process %d, which is not a living %s: %.60q", controlProgram, pid, controlComm, stat)}
	}
	return pid, nil
}

// environment returns the environment of the control daemon and the server. What the
// program has for its own CUDA clients does not apply to them.
func (p *Pool) environment(env []string) []string {
	// From driver 615 on version 2 is still the default and has the commands used here.
	out := append(p.variables(), "CUDA_MPS_PROTOCOL_VERSION=2")
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "CUDA_MPS_") && name != "LD_PRELOAD" && name != devicesEnv && name != Env {
			out = append(out, e)
		}
	}
	if p.Devices != "" && !hasIndices(p.Devices) {
		out = append(out, devicesEnv+"="+p.Devices)
	}
	return out
}

// start starts a control daemon. The pool's lock is held and there is none.
func (p *Pool) start(env []string) error {
	program, err := exec.LookPath(controlProgram)
	if err != nil {
		return fmt.Errorf("%w: there is no %s; install NVIDIA's compute utilities", ErrNoMPS, controlProgram)
	}
	entries, err := os.ReadDir(p.pipe())
	if err != nil {
		return err
	}
	for _, e := range entries { // left by a daemon that was killed
		if err := os.RemoveAll(filepath.Join(p.pipe(), e.Name())); err != nil {
			return err
		}
	}
	// The daemon may keep its output open, so that a pipe would not end.
	out, err := os.CreateTemp(p.log(), "start-*")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-d")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.environment(env), "/", out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals of the terminal
	err = cmd.Run()
	most := startTime
	if err != nil { // one may be starting, by a member that was killed meanwhile
		most /= 10
	}
	missing := p.awaitControl(most)
	if missing == nil {
		return nil
	}
	if err == nil {
		err = missing
		_, _ = p.ask("quit") // it may run unseen, and would never end
	}
	text, _ := os.ReadFile(out.Name())
	return fmt.Errorf("start %s: %w; it printed %q%s; see %s", controlProgram, err, bytes.TrimSpace(text), p.logEnds(), p.log())
}

// awaitControl waits until the control daemon is there.
func (p *Pool) awaitControl(most time.Duration) error {
	for end := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		_, err := findControl(p.pipe())
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("it is not there after %v: %w", most, err)
		}
	}
}

// logEnds returns how the logs of MPS end, for an error.
func (p *Pool) logEnds() string {
	var b strings.Builder
	for _, name := range []string{"control.log", "server.log"} {
		text, err := safepath.ReadUntrusted(filepath.Join(p.log(), name), 16<<20)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if err == nil && lines[0] != "" {
			fmt.Fprintf(&b, "; %s ends with %.500q", name, lines[max(0, len(lines)-3):])
		}
	}
	return b.String()
}

// ask gives a command to the control daemon and returns its answer.
func (p *Pool) ask(command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, controlProgram)
	cmd.Env, cmd.Dir, cmd.Stdin = p.environment(os.Environ()), "/", strings.NewReader(command+"\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask the MPS control daemon for %s: %w; it printed %q%s; see %s", command, err, bytes.TrimSpace(out), p.logEnds(), p.log())
	}
	return string(out), nil
}

// errNoPIDs means that the control daemon answered, but not with a list of pids. A server
// may have exited meanwhile.
var errNoPIDs = errors.New("this is not a list of pids")

// askPIDs gives a command whose answer is a list of pids.
func (p *Pool) askPIDs(command string) ([]int, error) {
	text, err := p.ask(command)
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(text) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("ask the MPS control daemon for %s: got %q: %w", command, text, errNoPIDs)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// servers returns the pids of the pool's servers.
func (p *Pool) servers() ([]int, error) { return p.askPIDs("get_server_list") }

// clientsOf returns the pids of the clients of some servers.
func (p *Pool) clientsOf(servers []int) (all []int, err error) {
	for _, server := range servers {
		of, failed := p.askPIDs(fmt.Sprintf("get_client_list %d", server))
		all, err = append(all, of...), errors.Join(err, failed)
	}
	return all, err
}

// faulted returns those of some servers that refuse clients: a client has had a fault that
// ended all, and they have not exited yet. A server too old to tell counts as one without.
func (p *Pool) faulted(servers []int) (all []int, err error) {
	for _, server := range servers {
		text, failed := p.ask(fmt.Sprintf("get_server_status %d", server))
		words := strings.FieldsFunc(text, func(c rune) bool { return !unicode.IsLetter(c) })
		if slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, "fault") }) {
			all = append(all, server)
		}
		err = errors.Join(err, failed)
	}
	return all, err
}

// quit ends the control daemon and its servers. The pool's lock is held.
func (p *Pool) quit() error {
	pid, err := p.control()
	if err != nil || pid == 0 {
		return err
	}
	_, failed := p.ask("quit")
	for end := time.Now().Add(quitTime); ; time.Sleep(5 * time.Millisecond) {
		now, err := p.control()
		switch {
		case err == nil && now == 0:
			return nil
		case failed != nil:
			return failed
		case time.Now().After(end):
			return fmt.Errorf("the MPS control daemon, process %d, was told to quit and is there after %v%s; see %s", pid, quitTime, p.logEnds(), p.log())
		}
	}
}
