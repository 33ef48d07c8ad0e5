package pool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/pool/mpstest"
	"golang.org/x/sys/unix"
)

// TestMain plays the parts of the other processes: NVIDIA's, a 'giveway run' that joins a
// pool and runs a CUDA program in it, and the keeper.
func TestMain(m *testing.M) {
	mpstest.RunIfNamed()
	keepInterval = 10 * time.Millisecond
	Linger = 100 * time.Millisecond
	appearTime = 100 * time.Millisecond
	faultInterval = 30 * time.Millisecond
	if text := os.Getenv("POOL_TEST_LINGER"); text != "" {
		Linger, _ = time.ParseDuration(text)
		keepInterval = time.Millisecond
	}
	if text := os.Getenv("POOL_TEST_APPEAR"); text != "" {
		appearTime, _ = time.ParseDuration(text)
	}
	var err error
	switch part, _, _ := strings.Cut(os.Getenv("POOL_TEST"), " "); {
	case len(os.Args) == 3 && os.Args[1] == "keep":
		unix.CloseOnExec(3)
		err = Keep(os.Args[2], func() { unix.Close(3) }, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	case part == "join":
		err = joiner()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// joiner is a 'giveway run --pool -- cuda-program'.
func joiner() error {
	weight, _ := strconv.ParseInt(os.Getenv("POOL_TEST")[len("join "):], 10, 64)
	os.Unsetenv("POOL_TEST")
	m, err := Join(Request{Env: os.Environ(), Weight: weight, Command: "cuda-program", Keeper: keeperCommand()})
	if err != nil {
		return err
	}
	cmd := exec.Command(mpstest.Program)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = m.Env, os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// keeperCommand is the command of a keeper.
func keeperCommand() []string {
	self, _ := os.Executable()
	return []string{self, "keep"}
}

// testbed is a folder of pools with NVIDIA's programs.
type testbed struct {
	*testing.T
	dir string
	bin string // NVIDIA's programs
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	bin := t.TempDir()
	if err := mpstest.Install(bin); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pt") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv(FolderEnv, dir)
	for _, name := range []string{pipeEnv, logEnv, threadsEnv, devicesEnv} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	was := defaultPipe
	defaultPipe = filepath.Join(dir, "none")
	t.Cleanup(func() {
		defaultPipe = was
		b := &testbed{t, dir, bin}
		if pid := b.control(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		b.wait("the end of the keeper", func() bool { return !b.kept() })
		os.RemoveAll(dir)
	})
	return &testbed{t, dir, bin}
}

// info describes the pool of the joiners.
func (b *testbed) info() Info {
	namespace, err := pidNamespace()
	if err != nil {
		b.Fatal(err)
	}
	return Info{Label: DefaultLabel, Namespace: namespace}
}

func (b *testbed) folder() string { return filepath.Join(b.dir, b.info().name()) }
func (b *testbed) control() int   { return controlPID(filepath.Join(b.folder(), "pipe")) }

// ended reports whether the pool has neither a control daemon nor a keeper.
func (b *testbed) ended() bool { return b.control() == 0 && !b.kept() }

// startControl starts a control daemon as a user does, and returns its pid.
func (b *testbed) startControl(env []string, pipe string) (pid int) {
	b.Helper()
	cmd := exec.Command(mpstest.Control, "-d")
	cmd.Env = append(slices.Clone(env), pipeEnv+"="+pipe)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.wait("the control daemon", func() bool { pid = controlPID(pipe); return pid != 0 })
	b.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

// wrapControl replaces NVIDIA's control program by a shell script, in which $real is the
// program and $dir the testbed's folder.
func (b *testbed) wrapControl(script string) {
	b.Helper()
	bin := b.TempDir()
	text := fmt.Sprintf("#!/bin/sh\nreal=%s/%s dir=%s\n[ \"$1\" != -f ] || exec \"$real\" -f\n%s\n", b.bin, controlProgram, b.dir, script)
	if err := os.WriteFile(filepath.Join(bin, controlProgram), []byte(text), 0o755); err != nil {
		b.Fatal(err)
	}
	b.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// mark makes a file in the testbed's folder; marked reports whether there is one.
func (b *testbed) mark(name string) {
	b.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *testbed) unmark(name string) { os.Remove(filepath.Join(b.dir, name)) }

func (b *testbed) marked(name string) bool {
	_, err := os.Stat(filepath.Join(b.dir, name))
	return err == nil
}

// kept reports whether the pool has a keeper.
func (b *testbed) kept() bool {
	f, err := os.OpenFile(filepath.Join(b.folder(), "keeper"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return !tryLock(f)
}

func (b *testbed) wait(what string, is func() bool) {
	b.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("waited for %s in vain", what)
		}
	}
}

// job is a joiner that runs.
type job struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	errs  *strings.Builder
	says  string // what the CUDA program printed
}

// start starts a joiner and waits until its program runs or has failed.
func (b *testbed) start(weight int, env ...string) *job {
	b.Helper()
	return b.run(exec.Command("/proc/self/exe"), append(env, joinEnv(weight))...)
}

// joinEnv makes the test's program a joiner.
func joinEnv(weight int) string { return fmt.Sprint("POOL_TEST=join ", weight) }

// run starts a command and waits until its CUDA program runs or has failed.
func (b *testbed) run(cmd *exec.Cmd, env ...string) *job {
	b.Helper()
	j := &job{cmd: cmd, errs: &strings.Builder{}}
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), j.errs
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		b.Fatal(err)
	}
	j.stdin = in
	j.says, _ = bufio.NewReader(out).ReadString('\n')
	b.Cleanup(func() { _ = cmd.Process.Kill(); in.Close(); _ = cmd.Wait() })
	return j
}

// end lets the program end and returns the joiner's error.
func (j *job) end() error {
	j.stdin.Close()
	return j.cmd.Wait()
}
