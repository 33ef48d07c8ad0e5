package extpolicy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// dialTime is how long the process may take to accept a connection.
const dialTime = time.Second

// dial connects to the process, or starts it.
func (c *Connection) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if c.cfg.Exec != "" {
		return start(c.cfg.Exec, c.log)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return (&net.Dialer{}).DialContext(ctx, "unix", c.cfg.Socket)
}

// process is a policy process that this package started.
type process struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

// start starts a command. Its standard error goes to the log.
func start(command string, log *slog.Logger) (*process, error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	// A process group of its own, so that Close also kills what the shell starts, and a
	// signal that kills the shell if the daemon is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	if err := proc.Start(cmd); err != nil {
		return nil, err
	}
	go logLines(stderr, log)
	return &process{out, in, cmd}, nil
}

// logLines logs what the process writes to its standard error, at most ten lines a
// second.
func logLines(r io.Reader, log *slog.Logger) {
	const perSecond = 10
	begin, count := time.Now(), 0
	for lines := bufio.NewScanner(r); lines.Scan(); count++ {
		if time.Since(begin) > time.Second {
			begin, count = time.Now(), 0
		}
		if count < perSecond {
			log.Info("external policy", "stderr", lines.Text())
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line too long for the scanner: keep the pipe empty
}

// Close kills the process and what it started.
func (p *process) Close() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.WriteCloser.Close()
	_ = p.cmd.Wait()
	return nil
}
