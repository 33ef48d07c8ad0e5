package nvrmtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// The test binary acts as a Program on this control file when the environment names one.
// init checks that before any test or flag is read, so that a package whose tests start
// Programs needs no TestMain.
const envProgram = "NVRMTEST_PROGRAM"

func init() {
	path := os.Getenv(envProgram)
	if path == "" {
		return
	}
	if err := runProgram(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Program is another process with the RM objects of a CUDA context.
type Program struct {
	*drivertest.Child
	programInfo
}

// programInfo is what a Program reports when it is ready. Like a CUDA process it has two
// descriptors of the control file, and only one of them leads to the context.
type programInfo struct {
	FD      int // leads to the context
	OtherFD int // leads to a client without objects
	Context Context
}

// Start starts a Program on the mount. It is killed when the test ends. Exit makes it free
// its context and exit.
func (m *Mount) Start(t testing.TB) *Program {
	t.Helper()
	p := &Program{Child: drivertest.Start(t, drivertest.Self(envProgram+"="+m.Path))}
	if err := json.NewDecoder(p.Out).Decode(&p.programInfo); err != nil {
		t.Fatalf("read from program: %v", err)
	}
	return p
}

// StartMPSServer starts a Program that is called nvidia-cuda-mps-server, with additions to
// its environment. ShareGroup makes others its clients.
func (m *Mount) StartMPSServer(t testing.TB, env ...string) *Program {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := drivertest.Self(append(env, envProgram+"="+m.Path)...)
	cmd.Path = path
	p := &Program{Child: drivertest.Start(t, cmd)}
	if err := json.NewDecoder(p.Out).Decode(&p.programInfo); err != nil {
		t.Fatalf("read from MPS server: %v", err)
	}
	return p
}

// ShareGroup makes the compute group of a client that of an MPS server: it has the server's
// number under a handle of its own, as on an H200. It is called before the group is used.
func (rm *RM) ShareGroup(server, client Context) {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	of := func(c Context) *object { return rm.clients[c.Client].objects[c.Compute.Group] }
	of(client).group = of(server).group
}

// Remake makes the Program free its compute group and make it again.
func (p *Program) Remake(t testing.TB) {
	t.Helper()
	fmt.Fprintln(p.In)
	if answer, err := bufio.NewReader(p.Out).ReadString('\n'); err != nil || answer != "ok\n" {
		t.Fatalf("make the group again: got %q, %v", answer, err)
	}
}

// runProgram makes a context, reports it, makes its group again for each line of standard
// input, and ends when that is closed.
func runProgram(path string) error {
	other, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	if _, err := nvrm.NewClient(other); err != nil {
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
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := c.Remake(f); err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return nvrm.Free(f, c.Client, 0, c.Client)
}
