package kfdtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/drivertest"
	"golang.org/x/sys/unix"
)

// envProgram makes the test binary run as a Program. init checks it before tests and flags
// are parsed, so a package whose tests start Programs needs no TestMain.
const envProgram = "KFDTEST_PROGRAM"

func init() {
	if os.Getenv(envProgram) != "" {
		runtime.LockOSThread() // tracing belongs to the first thread
		serveOrders(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// order tells a Program to open a path, to make an ioctl on the file that it opened or on
// an inherited descriptor, or to trace a process.
type order struct {
	Open    string
	Request uint32
	Arg     []byte
	FD      int // 0: the file that it opened
	Seize   int
}

// outcome is the result of an order.
type outcome struct {
	N     int
	Errno unix.Errno
	Arg   []byte
}

// Program is another process that carries out orders of the test. It implements
// kfd.Ioctler for requests whose arguments hold no addresses.
type Program struct {
	*drivertest.Child

	mu  sync.Mutex // one order at a time
	in  *json.Encoder
	out *json.Decoder
}

// Start starts a Program as a user. It inherits files from descriptor 3 on. It is killed
// at the end of the test.
func Start(t testing.TB, uid int, files ...*os.File) *Program {
	t.Helper()
	// The Go runtime's own signals would stop a process whose tracer does not let it
	// continue.
	cmd := drivertest.Self(envProgram+"=1", "GODEBUG=asyncpreemptoff=1")
	cmd.ExtraFiles = files
	if uid != os.Getuid() {
		cmd.SysProcAttr = &unix.SysProcAttr{Credential: credential(uid)}
	}
	c := drivertest.Start(t, cmd)
	return &Program{Child: c, in: json.NewEncoder(c.In), out: json.NewDecoder(c.Out)}
}

func (p *Program) order(o order) (outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.in.Encode(o); err != nil {
		return outcome{}, err
	}
	var result outcome
	if err := p.out.Decode(&result); err != nil {
		return outcome{}, fmt.Errorf("program %d did not answer: %w", p.PID, err)
	}
	if result.Errno != 0 {
		return result, result.Errno
	}
	return result, nil
}

// Open makes it open the device.
func (p *Program) Open(path string) error {
	_, err := p.order(order{Open: path})
	return err
}

// Seize makes it trace a process.
func (p *Program) Seize(pid int) error {
	_, err := p.order(order{Seize: pid})
	return err
}

// Ioctl implements kfd.Ioctler on the file that it opened.
func (p *Program) Ioctl(request uint32, arg []byte) (int, error) { return p.IoctlOn(0, request, arg) }

// IoctlOn makes the call on one of its descriptors.
func (p *Program) IoctlOn(fd int, request uint32, arg []byte) (int, error) {
	result, err := p.order(order{Request: request, Arg: arg, FD: fd})
	copy(arg, result.Arg)
	return result.N, err
}

// serveOrders carries out orders until its input ends.
func serveOrders(r io.Reader, w io.Writer) {
	in, out := json.NewDecoder(r), json.NewEncoder(w)
	var opened *kfd.File
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		var result outcome
		var err error
		switch {
		case o.Open != "":
			opened, err = kfd.Open(o.Open)
		case o.Seize != 0:
			err = seize(o.Seize)
		case o.FD != 0:
			result.N, err = ioctl(o.FD, o.Request, o.Arg)
		case opened == nil:
			err = unix.EBADF
		default:
			result.N, err = opened.Ioctl(o.Request, o.Arg)
		}
		result.Arg = o.Arg
		if err != nil && !errors.As(err, &result.Errno) {
			result.Errno = unix.EIO
		}
		if out.Encode(result) != nil {
			return
		}
	}
}

// seize begins to trace a process, which keeps running.
func seize(pid int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
