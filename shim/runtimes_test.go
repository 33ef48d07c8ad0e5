package shim_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// hang is what nothing here takes, however slow the machine.
const hang = 30 * time.Second

// A keeper is as much of a daemon as a gate needs; or only the place of one.
type keeper struct {
	*pagetest.Daemon
	socket string
}

func keep(t testing.TB, prepare func(*shimpage.Page)) *keeper {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	return &keeper{pagetest.At(t, socket, prepare), socket}
}

func (k *keeper) page() *shimpage.Page { return k.Page() }

const lease = pagetest.Lease

// A program runs with the shim before it, and its output is read line by line.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
	said  []string
}

func start(t testing.TB, k *keeper, dir string, args ...string) *program {
	t.Helper()
	p := &program{t: t, lines: make(chan string, 1<<16)}
	p.cmd = exec.Command(filepath.Join(dir, args[0]), args[1:]...)
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "POCL_CACHE_DIR="+filepath.Join(dir, "pocl"))
	if k != nil {
		p.cmd.Env = append(p.cmd.Env, "LD_PRELOAD="+filepath.Join(dir, "libgiveway.so"), "GIVEWAY_SOCKET="+k.socket)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
		close(p.lines)
	}()
	return p
}

// until reads lines up to the first that begins so, which it returns.
func (p *program) until(prefix string) string {
	p.t.Helper()
	deadline := time.After(hang)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%v ended without saying %q: %q", p.cmd.Args, prefix, p.tail())
			}
			p.said = append(p.said, line)
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-deadline:
			p.t.Fatalf("%v hangs before %q: %q", p.cmd.Args, prefix, p.tail())
		}
	}
}

// tell writes a line to the program.
func (p *program) tell(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// silent fails if the program says anything before then.
func (p *program) silent(d time.Duration) {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		p.t.Fatalf("%v went on while it was held: %q (still running: %v)", p.cmd.Args, line, ok)
	case <-time.After(d):
	}
}

func (p *program) tail() []string { return p.said[max(0, len(p.said)-5):] }

// ok waits for the program's end, which must be a good one. It returns the line
// that says so.
func (p *program) ok() string {
	p.t.Helper()
	line := p.until("ok ")
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v", p.cmd.Args, err)
	}
	return line
}

// held waits until a thread of the program waits at its gate.
func held(t testing.TB, page *shimpage.Page) {
	t.Helper()
	for end := time.Now().Add(hang); page.Counters().Flags&flagHeld == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody waits at a gate that is shut")
		}
	}
}

const flagHeld = 2 // GW_HELD

// A bench is a folder with the shim and the programs to try it on.
type bench struct {
	t   *testing.T
	dir string
}

// TestRuntimes runs programs of each runtime with the shim before them.
func TestRuntimes(t *testing.T) {
	if testing.Short() {
		t.Skip("what is tried here is C, and is tried where the tests are not -short")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the shim's tests need gcc")
	}
	sources, err := filepath.Glob("*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	b := bench{t, t.TempDir()}
	b.compile("shim.o", append(sources, "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-r", "-nostdlib")...)
	b.compile("libgiveway.so", b.path("shim.o"), "-shared",
		"-Wl,-Bsymbolic,--version-script=giveway.map,-z,defs,-z,nodelete,-z,relro,-z,now")
	t.Run("CUDA", func(t *testing.T) { testCUDA(bench{t, b.dir}) })
	t.Run("HIP", func(t *testing.T) { testHIP(bench{t, b.dir}) })
	t.Run("OpenCL", func(t *testing.T) { testOpenCL(bench{t, b.dir}) })
	t.Run("rows", func(t *testing.T) { testRows(bench{t, b.dir}) })
	t.Run("KFD", func(t *testing.T) { testKFD(bench{t, b.dir}) })
	t.Run("stress", func(t *testing.T) { testGateStress(bench{t, b.dir}) })
	t.Run("look-up", func(t *testing.T) { testLookup(bench{t, b.dir}) })
	t.Run("musl", func(t *testing.T) { testMusl(bench{t, b.dir}) })
}

func (b bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b bench) compile(name string, args ...string) {
	b.t.Helper()
	b.compileWith("gcc", "-std=gnu11", name, args)
}

func (b bench) compileCPP(name string, args ...string) {
	b.t.Helper()
	b.compileWith("g++", "-std=c++17", name, args)
}

func (b bench) compileWith(compiler, language, name string, args []string) {
	b.t.Helper()
	flags := append([]string{"-o", b.path(name), "-L" + b.dir}, args...)
	flags = append(flags, language, "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-ldl", "-pthread")
	if out, err := exec.Command(compiler, flags...).CombinedOutput(); err != nil {
		b.t.Fatalf("compile %s: %v\n%s", name, err, out)
	}
}

// conforms runs a conformance test.
func (b bench) conforms(name string) {
	b.t.Helper()
	p := start(b.t, nil, b.dir, name)
	var said []string
	for line := range p.lines {
		said = append(said, line)
	}
	if err := p.cmd.Wait(); err != nil || len(said) == 0 {
		b.t.Fatalf("%s: %v: %q", name, err, said)
	}
}
