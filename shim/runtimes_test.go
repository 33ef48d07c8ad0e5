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

const (
	timeout = pagetest.Timeout
	lease   = pagetest.Lease
	noShim  = "" // a socket for start: the process runs without the shim
)

func newDaemon(t testing.TB, prepare func(*shimpage.Page)) *pagetest.Daemon {
	t.Helper()
	return pagetest.At(t, filepath.Join(t.TempDir(), "s"), prepare)
}

// process is a running test program whose output is read line by line.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	output []string // lines read so far
}

// start runs a program of dir with the shim and with a daemon at socket, or without the shim
// if socket is noShim.
func start(t testing.TB, socket, dir string, args ...string) *process {
	t.Helper()
	p := prepare(t, socket, dir, args...)
	p.run()
	return p
}

// prepare is start without running the program, so that the caller can change p.cmd.
func prepare(t testing.TB, socket, dir string, args ...string) *process {
	t.Helper()
	p := &process{t: t, lines: make(chan string, 1<<16)}
	p.cmd = exec.Command(filepath.Join(dir, args[0]), args[1:]...)
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "POCL_CACHE_DIR="+filepath.Join(dir, "pocl"))
	if socket != noShim {
		p.cmd.Env = append(p.cmd.Env, "LD_PRELOAD="+filepath.Join(dir, "libgiveway.so"), "GIVEWAY_SOCKET="+socket)
	}
	p.cmd.Stderr = os.Stderr
	return p
}

// run runs a prepared program.
func (p *process) run() {
	p.t.Helper()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
		close(p.lines)
	}()
}

// waitFor reads lines up to the first one with the prefix, and returns that line.
func (p *process) waitFor(prefix string) string {
	p.t.Helper()
	deadline := time.After(timeout)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%v ended without printing %q (%v): %q", p.cmd.Args, prefix, p.cmd.Wait(), p.tail())
			}
			p.output = append(p.output, line)
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-deadline:
			p.t.Fatalf("%v does not print %q: %q", p.cmd.Args, prefix, p.tail())
		}
	}
}

// send writes a line to the process.
func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// expectSilence fails if the process prints anything within d.
func (p *process) expectSilence(d time.Duration) {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		p.t.Fatalf("%v went on while it was held and printed %q (still running: %v)", p.cmd.Args, line, ok)
	case <-time.After(d):
	}
}

func (p *process) tail() []string { return p.output[max(0, len(p.output)-5):] }

// expectOK waits until the process exits successfully, and returns its last line, which starts
// with "ok".
func (p *process) expectOK() string {
	p.t.Helper()
	line := p.waitFor("ok ")
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v", p.cmd.Args, err)
	}
	return line
}

// waitUntilHeld waits until a thread of the process waits at the gate.
func waitUntilHeld(t testing.TB, page *shimpage.Page) {
	t.Helper()
	for end := time.Now().Add(timeout); page.Counters().Flags&shimpage.Held == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no thread waits at the closed gate")
		}
	}
}

// builder compiles the shim and test programs into a folder.
type builder struct {
	t   *testing.T
	dir string
}

// TestRuntimes runs programs of each runtime with the shim.
func TestRuntimes(t *testing.T) {
	if testing.Short() {
		t.Skip("tests of C code are skipped with -short")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the shim's tests need gcc")
	}
	sources, err := filepath.Glob("*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	b := builder{t, t.TempDir()}
	b.compile("shim.o", append(sources, "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-r", "-nostdlib")...)
	b.compile("libgiveway.so", b.path("shim.o"), "-shared",
		"-Wl,-Bsymbolic,--version-script=giveway.map,-z,defs,-z,nodelete,-z,relro,-z,now")
	t.Run("CUDA", func(t *testing.T) { testCUDA(builder{t, b.dir}) })
	t.Run("HIP", func(t *testing.T) { testHIP(builder{t, b.dir}) })
	t.Run("OpenCL", func(t *testing.T) { testOpenCL(builder{t, b.dir}) })
	t.Run("Level Zero", func(t *testing.T) { testLevelZero(builder{t, b.dir}) })
	t.Run("rows", func(t *testing.T) { testRows(builder{t, b.dir}) })
	t.Run("KFD", func(t *testing.T) { testKFD(builder{t, b.dir}) })
	t.Run("stress", func(t *testing.T) { testGateStress(builder{t, b.dir}) })
	t.Run("many streams", func(t *testing.T) { testManyStreams(builder{t, b.dir}) })
	t.Run("stall", func(t *testing.T) { testStall(builder{t, b.dir}) })
	t.Run("look-up", func(t *testing.T) { testLookup(builder{t, b.dir}) })
	t.Run("musl", func(t *testing.T) { testMusl(builder{t, b.dir}) })
}

func (b builder) path(name string) string { return filepath.Join(b.dir, name) }

func (b builder) compile(name string, args ...string) {
	b.t.Helper()
	b.compileWith("gcc", "-std=gnu11", name, args)
}

func (b builder) compileCPP(name string, args ...string) {
	b.t.Helper()
	b.compileWith("g++", "-std=c++17", name, args)
}

func (b builder) compileWith(compiler, language, name string, args []string) {
	b.t.Helper()
	flags := append([]string{"-o", b.path(name), "-L" + b.dir}, args...)
	flags = append(flags, language, "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-ldl", "-pthread")
	if out, err := exec.Command(compiler, flags...).CombinedOutput(); err != nil {
		b.t.Fatalf("compile %s: %v\n%s", name, err, out)
	}
}

// conforms runs a conformance test.
func (b builder) conforms(name string) {
	b.t.Helper()
	p := start(b.t, noShim, b.dir, name)
	var output []string
	for line := range p.lines {
		output = append(output, line)
	}
	if err := p.cmd.Wait(); err != nil || len(output) == 0 {
		b.t.Fatalf("%s: %v: %q", name, err, output)
	}
}
