package nvrmtest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// The test binary acts as a Program when the environment says so. init checks that before
// any test or flag is read, so that a package whose tests start Programs needs no TestMain.
const (
	envRole = "NVRMTEST_ROLE"
	envPath = "NVRMTEST_PATH"

	roleProgram = "program"
)

func init() {
	path := os.Getenv(envPath)
	switch os.Getenv(envRole) {
	case "":
		return
	case roleProgram:
		if err := runProgram(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "unknown value of %s\n", envRole)
		os.Exit(2)
	}
	os.Exit(0)
}

// reexec returns a command that runs this binary in another role.
func reexec(role, path string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// Without this a process under the race detector takes a second to exit.
	cmd.Env = append(os.Environ(), envRole+"="+role, envPath+"="+path, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// Program is another process with the RM objects of a CUDA context.
type Program struct {
	Pid int
	programInfo

	cmd   *exec.Cmd
	stdin io.Closer
	ended bool
}

// programInfo is what a Program reports when it is ready. Like a CUDA process it has two
// descriptors of the control file, and only one of them leads to the context.
type programInfo struct {
	FD      int // leads to the context
	OtherFD int // leads to a client without objects
	Context Context
}

// Start starts a Program on the mount. It is killed when the test ends.
func (m *Mount) Start(t testing.TB) *Program {
	t.Helper()
	cmd := reexec(roleProgram, m.Path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start program: %v", err)
	}
	p := &Program{Pid: cmd.Process.Pid, cmd: cmd, stdin: stdin}
	t.Cleanup(p.Kill)
	if err := json.NewDecoder(stdout).Decode(&p.programInfo); err != nil {
		t.Fatalf("read from program: %v", err)
	}
	return p
}

// Exit makes the program free its context and exit, and waits for it.
func (p *Program) Exit() error {
	p.ended = true
	p.stdin.Close()
	return p.cmd.Wait()
}

// Kill sends SIGKILL to the program and waits until it has exited.
func (p *Program) Kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill() // fails if it has exited
	_ = p.cmd.Wait()         // reports the signal
}

// runProgram makes a context, reports it, and waits until standard input is closed.
func runProgram(path string) error {
	other, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	if _, err := nvrm.Alloc(other, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil); err != nil {
		return err
	}
	f, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	c, err := NewContext(f)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(programInfo{f.Fd(), other.Fd(), c}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nvrm.Free(f, c.Client, 0, c.Client)
}
