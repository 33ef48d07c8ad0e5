package extpolicy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// dialTime is how long the process may take to accept a connection.
const dialTime = time.Second

// dial connects to the process, or starts it.
func (c *Connection) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if c.cfg.Exec != "" {
		return startCommand(c.cfg.Exec, c.failing != nil, c.log)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.cfg.Socket)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn, c.cfg.Socket); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkPeer returns an error unless root or the user of this process started the listener: the policy
// decides about the processes of all users, and another user may have made a socket at that path.
func checkPeer(conn net.Conn, path string) error {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%s is not a unix socket", path)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return fmt.Errorf("find out which user listens on %s: %w", path, err)
	}
	var peer *syscall.Ucred
	failed := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("find out which user listens on %s: %w", path, err)
	}
	if self := uint32(os.Geteuid()); peer.Uid != 0 && peer.Uid != self {
		return fmt.Errorf("user %d listens on %s, and only a policy process of root or of user %d is trusted; start it as one of these, in a folder that no other user can change", peer.Uid, path, self)
	}
	return nil
}

// process is a policy process that this package started.
type process struct {
	io.Reader
	io.WriteCloser
	cmd      *exec.Cmd
	lastLine chan string   // of its standard error, when that is closed
	reaped   chan struct{} // closed by Close when the process has ended
	ended    error         // how it ended; set by Close
}

// The kernel must not spare a policy's command when memory runs out, as it spares the daemon, whose score
// the command would inherit. So the shell gives itself this one, if its own is lower, before it becomes
// the command's. Tests set the score.
var commandScore = "0"

const startScript = `f=/proc/self/oom_score_adj
{ read score <$f && [ "$score" -lt "$2" ] && echo "$2" >$f; } 2>/dev/null
exec /bin/sh -c "$1"`

// startCommand starts a command. Its standard error goes to the log, where that of a command that is
// started again after a failure is only for debugging.
func startCommand(command string, again bool, log *slog.Logger) (*process, error) {
	cmd := exec.Command("/bin/sh", "-c", startScript, "sh", command, commandScore)
	// A process group of its own, so that Close also kills what the shell starts, and a
	// signal that kills the shell if the daemon is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	p := &process{Reader: out, WriteCloser: in, cmd: cmd, lastLine: make(chan string, 1), reaped: make(chan struct{})}
	if err := p.start(); err != nil {
		return nil, err
	}
	level := slog.LevelInfo
	if again {
		level = slog.LevelDebug
	}
	go func() { p.lastLine <- logLines(stderr, level, log) }()
	return p, nil
}

// start starts the process from a thread that stays until the process has ended: the kernel sends
// Pdeathsig when that thread exits, and threads of this program come and go.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := proc.Start(p.cmd)
		if started <- err; err == nil {
			<-p.reaped
		}
	}()
	return <-started
}

// logLines logs what the process writes to its standard error, at most ten lines a
// second, and returns the last line.
func logLines(r io.Reader, level slog.Level, log *slog.Logger) (last string) {
	const perSecond = 10
	begin, count := time.Now(), 0
	for lines := bufio.NewScanner(r); lines.Scan(); count++ {
		if time.Since(begin) > time.Second {
			begin, count = time.Now(), 0
		}
		if last = lines.Text(); count < perSecond {
			log.Log(context.Background(), level, "external policy", "stderr", last)
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line too long for the scanner: keep the pipe empty
	return last
}

// lineTime is how long Close waits for the last line of standard error, which a process outside
// the group may keep open. Tests set it.
var lineTime = 100 * time.Millisecond

// Close kills the process and what it started.
func (p *process) Close() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.WriteCloser.Close()
	last := ""
	select {
	case last = <-p.lastLine:
	case <-time.After(lineTime):
	}
	_ = p.cmd.Wait()
	close(p.reaped)
	p.ended = errClosed
	if state := p.cmd.ProcessState; state != nil && state.Exited() {
		p.ended = errors.New("it ended: " + state.String())
	}
	if last != "" {
		p.ended = fmt.Errorf("%w: %s", p.ended, proc.Printable(last[:min(len(last), maxLine)]))
	}
	return nil
}

// maxLine is how many bytes of a line of standard error are shown as the reason of a failure.
const maxLine = 200
