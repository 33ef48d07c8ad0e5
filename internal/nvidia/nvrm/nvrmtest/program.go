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

// The test's own binary plays other parts when the environment says so. That is
// seen to before any test, or flag, is looked at, so a package whose tests start
// Programs needs nothing for it.
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
		if err := live(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s is not understood\n", envRole)
		os.Exit(2)
	}
	os.Exit(0)
}

// again is our own program in another part.
func again(role, path string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// Under the race detector a program dawdles for a second before it ends.
	cmd.Env = append(os.Environ(), envRole+"="+role, envPath+"="+path, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// Program is another process that has a CUDA context, as far as RM can tell.
type Program struct {
	Pid int
	birth

	cmd   *exec.Cmd
	stdin io.Closer
	over  bool
}

// birth is what a Program tells of itself. Like a CUDA program, it has more than
// one descriptor of the control file and the context behind one of them only.
type birth struct {
	FD      int // with the context
	OtherFD int // with a client that has nothing
	Context Context
}

// Start starts a Program on the mount. It ends with the test, if not before.
func (m *Mount) Start(t testing.TB) *Program {
	t.Helper()
	cmd := again(roleProgram, m.Path)
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
		t.Fatalf("start a program: %v", err)
	}
	p := &Program{Pid: cmd.Process.Pid, cmd: cmd, stdin: stdin}
	t.Cleanup(p.Kill)
	if err := json.NewDecoder(stdout).Decode(&p.birth); err != nil {
		t.Fatalf("the program did not say what it has made: %v", err)
	}
	return p
}

// Exit has the program free its context and end, and waits for that.
func (p *Program) Exit() error {
	p.over = true
	p.stdin.Close()
	return p.cmd.Wait()
}

// Kill ends it by SIGKILL and waits until it is gone.
func (p *Program) Kill() {
	if p.over {
		return
	}
	p.over = true
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // it was killed
}

// live is the program's life.
func live(path string) error {
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
	if err := json.NewEncoder(os.Stdout).Encode(birth{f.Fd(), other.Fd(), c}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nvrm.Free(f, c.Client, 0, c.Client)
}
