package daemon

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// newShimDaemon makes a daemon whose only backend is the shim.
func newShimDaemon() *Daemon { return newTestDaemon(newShim()) }

func newShim() *shim.Backend {
	b, err := shim.New(proc.Everyone)
	if err != nil {
		panic(err)
	}
	return b
}

// serve runs a daemon and its socket until stop is called, which may be more than once.
func serve(t testing.TB, d *Daemon) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	s := server.New(d, server.Config{Socket: socket, Pages: pageHost(d.cfg.Backends)})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ended.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-d.ready
	ended.Go(func() { _ = s.Serve(ctx) })
	stop = func() {
		cancel()
		ended.Wait()
	}
	t.Cleanup(stop)
	return socket, stop
}

// serveUntilKilled runs a daemon and its socket in a process of its own.
func serveUntilKilled(socket string) {
	d := newShimDaemon()
	d.cfg.Journal = openJournal(filepath.Dir(socket))
	s := server.New(d, server.Config{Socket: socket, Pages: pageHost(d.cfg.Backends)})
	go func() {
		<-d.ready
		_ = s.Serve(context.Background())
	}()
	_ = d.Run(context.Background())
}

// connectShim asks the daemon for a page, as shim/abi.h describes.
func connectShim(socket, abi, runtime string) (net.Conn, *pagetest.Process, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(c, "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\nGiveway-Abi: %s\r\nGiveway-Runtime: %s\r\n\r\n", abi, runtime)
	text, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(3*4))
	n, m, _, _, err := c.(*net.UnixConn).ReadMsgUnix(text, oob)
	if err == nil && !strings.HasPrefix(string(text[:n]), "HTTP/1.1 101") {
		err = fmt.Errorf("answered %.60q", text[:n])
	}
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil || len(messages) != 1 {
		return nil, nil, fmt.Errorf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 3 {
		return nil, nil, fmt.Errorf("descriptors %v, %v", fds, err)
	}
	p, err := pagetest.NewProcess(fds[0], fds[1], fds[2])
	return c, p, err
}

// runShimProcess is the process with a shim that the tests control: it reads commands from
// stdin, one a line, and prints results.
func runShimProcess(socket, runtime string) {
	version := strconv.Itoa(pageabi.Version)
	conn, p, err := connectShim(socket, version, runtime)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("connected")
	ends := []func(){}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, kind, value := "", shimpage.HintKind(0), int64(0)
		_, _ = fmt.Sscan(lines.Text(), &command, &kind, &value)
		switch command {
		case "connect": // again, as a shim does that has lost its daemon
			conn.Close()
			if conn, p, err = connectShim(socket, version, runtime); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("connected")
		case "launch":
			go func() { fmt.Println("launched", p.Launch()) }()
		case "done":
			p.AddCompleted(1)
		case "hint":
			p.Hint(kind, value)
		case "begin":
			ends = append(ends, p.Begin())
		case "end":
			ends[0]()
			ends = ends[1:]
		case "watch":
			fmt.Println("requests reported", p.Page.Watch.Load()&shimpage.ExplicitRequests != 0)
		case "use":
			p.Page.Runtimes.Store(uint32(kind))
		case "bound":
			_, bound, batch := p.InFlight()
			fmt.Println(bound, batch)
		case "settings":
			at, idempotent := p.Page.Expect.Load(), p.Page.Idempotent.Load()
			in := time.Duration(at) - time.Duration(shimpage.Monotonic(time.Now()))
			fmt.Println(idempotent, in > 50*time.Second && in <= time.Minute)
		case "late": // what the daemon says, and what the process counts
			fmt.Println("late", p.Page.LateEntry.Load())
		case "launch-late":
			p.LaunchLate()
			fmt.Println("waits")
		case "enter":
			p.EnterLate()
		case "count-late":
			p.Page.LateRequests.Store(7)
			p.Page.LateEarly.Store(2)
			p.Page.LateFor.Store(uint64(3 * time.Millisecond))
			p.Page.LateRatios[30].Store(2) // 0.990
			p.Page.LateRatios[34].Store(4) // 1.010
			p.Page.LateGivenUp.Store(1)
			fmt.Println("counted")
		case "classes": // what the daemon says, and what the process counts
			p.Page.ClassHolds.Store(7)
			p.Page.ClassHeldFor.Store(uint64(3 * time.Millisecond))
			p.Page.ClassLetGo.Store(2)
			fmt.Println("classes", p.Page.StreamClasses.Load())
		case "expects":
			at := p.Page.Expect.Load()
			fmt.Println("expects", at != 0)
		case "fork": // a child that inherits the connection
			f, _ := conn.(*net.UnixConn).File()
			child := exec.Command("sleep", "10")
			child.ExtraFiles = []*os.File{f}
			fmt.Println("forked", child.Start())
		case "scribble":
			r := rand.New(rand.NewPCG(uint64(kind), 0))
			p.Scribble(func() byte { return byte(r.Uint32()) })
			fmt.Println("scribbled")
		}
	}
}

// shimProcess is a process that runs runShimProcess.
type shimProcess struct {
	*exec.Cmd
	in     io.Writer
	output chan string // lines
}

func startShim(t *testing.T, socket, runtime string) *shimProcess {
	t.Helper()
	p := &shimProcess{Cmd: exec.Command(os.Args[0], socket, runtime), output: make(chan string, 100)}
	p.Env = append(os.Environ(), "DAEMON_TEST=shim")
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.in = in
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.output <- lines.Text()
		}
		close(p.output)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.expect(t, "connected")
	return p
}

// send sends a command to the process.
func (p *shimProcess) send(format string, args ...any) { fmt.Fprintf(p.in, format+"\n", args...) }

// expect waits for the next line of output.
func (p *shimProcess) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-p.output:
		if got != want {
			t.Fatalf("got output %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("got no output within 20 s, want %q", want)
	}
}

func (p *shimProcess) expectNothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-p.output:
		t.Fatalf("got output %q, want none", got)
	case <-time.After(50 * time.Millisecond):
	}
}

// described returns how the daemon describes the process; empty: it does not list it.
func (p *shimProcess) described(d *Daemon) (out api.Process) {
	for _, q := range d.Processes() {
		if q.PID == p.Process.Pid {
			out = q
		}
	}
	return out
}

func (p *shimProcess) set(t *testing.T, d *Daemon, attrs string) {
	t.Helper()
	if _, err := d.Change(ourselves, p.Process.Pid, given(attrs)); err != nil {
		t.Fatal(err)
	}
}
