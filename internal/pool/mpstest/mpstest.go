// Package mpstest is a double of NVIDIA's nvidia-cuda-mps-control, its server and a CUDA
// program, for tests of pools. The test's own program plays all three, under their names:
// Install makes links with these names, and RunIfNamed, called by TestMain, plays the part
// of the name under which the program was started.
//
// The double behaves as NVIDIA's documentation says: -d starts one daemon for each pipe
// folder, which writes nvidia-cuda-mps-control.pid there; without options commands are read
// from standard input; a server is started for the first client; a CUDA program that finds
// no daemon runs without MPS and says nothing; after a fault of a client, which SIGUSR1
// causes, the server refuses clients until those that it has have exited. Where the
// documentation is silent it is harsher than may be: a killed daemon leaves its files behind
// and its clients fail, and quit ends clients.
package mpstest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Names under which the program plays a part.
const (
	Control = "nvidia-cuda-mps-control"
	Server  = "nvidia-cuda-mps-server"
	Program = "cuda-program"
)

// RunIfNamed plays the part of the program's name and exits; it returns if the name is
// another one. With the race detector a process sleeps for a second before it exits, so a
// test that starts hundreds would take minutes: RunIfNamed turns that off for all that this
// process starts.
func RunIfNamed() {
	if _, given := os.LookupEnv("GORACE"); !given {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	var err error
	switch filepath.Base(os.Args[0]) {
	case Control:
		err = control(os.Args[1:])
	case Server:
		time.Sleep(time.Hour) // until it is killed
	case Program:
		err = program()
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Install makes the names in a folder, to be put in PATH.
func Install(dir string) error {
	self, err := os.Executable()
	for _, name := range []string{Control, Server, Program} {
		err = errors.Join(err, os.Symlink(self, filepath.Join(dir, name)))
	}
	return err
}

func pipe(name string) string {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	return filepath.Join(dir, name)
}

func pidFile() string { return pipe(Control + ".pid") }

// control is nvidia-cuda-mps-control.
func control(args []string) error {
	switch {
	case slices.Equal(args, []string{"-d"}):
		return daemonise()
	case slices.Equal(args, []string{"-f"}):
		return serve()
	case len(args) == 0:
		return commands()
	}
	return fmt.Errorf("%s: unknown option %q", Control, args)
}

func dial() (net.Conn, error) { return net.Dial("unix", pipe("control_privileged")) }

func daemonise() error {
	if c, err := dial(); err == nil {
		c.Close()
		return errors.New("an instance of this daemon is already running")
	}
	self, err := exec.LookPath(Control)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-f")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start() // it returns before the daemon has written its file
}

// commands sends the commands on standard input to the daemon and prints its answers.
func commands() error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		c, err := dial()
		if err != nil {
			fmt.Println("Cannot find MPS control daemon process")
			return errors.New("")
		}
		fmt.Fprintln(c, lines.Text())
		_, err = io.Copy(os.Stdout, c)
		c.Close()
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// daemon is the control daemon.
type daemon struct {
	mu      sync.Mutex
	server  *exec.Cmd
	clients map[int]net.Conn
	fault   bool // of a client; until there is none
}

func serve() error {
	if err := os.MkdirAll(pipe(""), 0o755); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP)
	_ = unix.Mkfifo(pipe("control"), 0o666)
	_ = os.WriteFile(pipe("control_lock"), nil, 0o666)
	l, err := net.Listen("unix", pipe("control_privileged"))
	if err != nil {
		return err // a killed daemon left its socket
	}
	syscall.Umask(0)
	if err := os.WriteFile(pidFile(), fmt.Appendln(nil, os.Getpid()), 0o666); err != nil {
		return err
	}
	d := &daemon{clients: map[int]net.Conn{}}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go d.answer(c)
	}
}

func (d *daemon) answer(c net.Conn) {
	line, err := bufio.NewReader(c).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) == 0 {
		c.Close()
		return
	}
	if words[0] == "client" {
		d.client(c)
		return
	}
	defer c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch words[0] {
	case "get_server_list":
		if d.server != nil {
			fmt.Fprintln(c, d.server.Process.Pid)
		}
	case "get_client_list", "get_server_status":
		switch {
		case d.server == nil || len(words) != 2 || words[1] != strconv.Itoa(d.server.Process.Pid):
			fmt.Fprintln(c, "Server not found")
		case words[0] == "get_client_list":
			for pid := range d.clients {
				fmt.Fprintln(c, pid)
			}
		case d.fault:
			fmt.Fprintln(c, "FAULT")
		default:
			fmt.Fprintln(c, "ACTIVE")
		}
	case "start_server":
		d.startServer()
	case "quit":
		if d.server != nil {
			_ = d.server.Process.Kill()
		}
		_ = os.Remove(pidFile())
		os.Exit(0)
	default:
		fmt.Fprintf(c, "Unknown command: %s\n", words[0])
	}
}

// startServer starts a server unless there is one. d.mu is held.
func (d *daemon) startServer() {
	path, err := exec.LookPath(Server)
	if err != nil || d.server != nil {
		return
	}
	cmd := exec.Command(path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if cmd.Start() != nil {
		return
	}
	d.server = cmd
	go func() {
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.server, d.fault = nil, false
		for _, c := range d.clients {
			c.Close()
		}
	}()
}

// client serves a client until it leaves.
func (d *daemon) client(c net.Conn) {
	cred, err := peer(c)
	if err != nil {
		c.Close()
		return
	}
	defer c.Close()
	d.mu.Lock()
	if d.fault {
		d.mu.Unlock()
		fmt.Fprintln(c, "not ready")
		return
	}
	d.startServer()
	d.clients[int(cred.Pid)] = c
	d.mu.Unlock()
	fmt.Fprintln(c, "connected")
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		d.mu.Lock()
		d.fault = d.fault || line == "fault\n"
		if err != nil {
			delete(d.clients, int(cred.Pid))
			d.fault = d.fault && len(d.clients) > 0
		}
		d.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func peer(c net.Conn) (cred *unix.Ucred, err error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, failed)
}

// program is a CUDA program: it prints its part of the GPU and whether it is a client of
// MPS, and ends when its input does. It fails if its server refuses it or ends, and goes on
// after a fault as an interpreter does.
func program() error {
	where := "outside"
	lost := make(chan struct{})
	if c, err := dial(); err == nil {
		fmt.Fprintln(c, "client")
		r := bufio.NewReader(c)
		switch line, _ := r.ReadString('\n'); line {
		case "connected\n":
			where = "inside"
			go func() {
				_, _ = io.Copy(io.Discard, r)
				close(lost)
			}()
			faults := make(chan os.Signal, 1)
			signal.Notify(faults, syscall.SIGUSR1)
			go func() {
				for range faults {
					fmt.Fprintln(c, "fault")
				}
			}()
		case "not ready\n":
			return errors.New("cudaErrorMpsServerNotReady")
		}
	}
	fmt.Println(where, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), os.Getenv("CUDA_VISIBLE_DEVICES"))
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-lost:
		return errors.New("cudaErrorMpsRpcFailure")
	}
}
