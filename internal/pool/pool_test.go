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
	"strconv"
	"strings"
	"sync"
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

// command returns a joiner that is not started.
func (b *testbed) command(weight int, env ...string) *job {
	j := &job{cmd: exec.Command("/proc/self/exe"), errs: &strings.Builder{}}
	j.cmd.Env = append(append(os.Environ(), fmt.Sprint("POOL_TEST=join ", weight)), env...)
	j.cmd.Stderr = j.errs
	return j
}

// start starts a joiner and waits until its program runs or has failed.
func (b *testbed) start(weight int, env ...string) *job {
	b.Helper()
	j := b.command(weight, env...)
	in, err := j.cmd.StdinPipe()
	out, err2 := j.cmd.StdoutPipe()
	if err := errors.Join(err, err2, j.cmd.Start()); err != nil {
		b.Fatal(err)
	}
	j.stdin = in
	j.says, _ = bufio.NewReader(out).ReadString('\n')
	b.Cleanup(func() { _ = j.cmd.Process.Kill(); in.Close(); _ = j.cmd.Wait() })
	return j
}

// end lets the program end and returns the joiner's error.
func (j *job) end() error {
	j.stdin.Close()
	return j.cmd.Wait()
}

// TestPoolLivesWithItsMembers checks that joiners at the same time get one control daemon,
// that all programs are its clients, and that the pool ends after the last one.
func TestPoolLivesWithItsMembers(t *testing.T) {
	b := newTestbed(t)
	const n = 6
	var jobs [n]*job
	var started sync.WaitGroup
	for i := range jobs {
		started.Go(func() { jobs[i] = b.start(1) })
	}
	started.Wait()
	control := b.control()
	for _, j := range jobs {
		if want := fmt.Sprintf("inside %s/pipe  \n", b.folder()); j.says != want {
			t.Errorf("got %q, want %q; %s", j.says, want, j.errs)
		}
	}
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != n || len(all[0].Members) != n || all[0].Control != control || len(all[0].Servers) != 1 {
		t.Errorf("got %+v, %v", all, err)
	}
	if ended, err := EndUnused(); ended != 0 || err != nil {
		t.Errorf("a pool with members: got %d ended, %v", ended, err)
	}
	if mode := mustStat(t, b.folder()).Mode().Perm(); mode != 0o700 {
		t.Errorf("folder: got mode %v", mode)
	}
	for _, j := range jobs {
		if err := j.end(); err != nil {
			t.Errorf("%v: %s", err, j.errs)
		}
	}
	b.wait("the end of the pool", b.ended)
}

func mustStat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestKilledMemberLeavesNothing checks that the pool ends after a SIGKILL of the joiner,
// but not while a program that it left behind is a client.
func TestKilledMemberLeavesNothing(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	control := b.control()
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = j.cmd.Process.Release()
	time.Sleep(3 * Linger) // in which an unused pool would end
	if b.control() != control {
		t.Error("the pool was ended under a client")
	}
	j.stdin.Close() // the program ends
	b.wait("the end of the pool", b.ended)
}

// TestJoinWhilePoolEnds checks that a program which joins while the pool is being ended is
// in a pool nevertheless, and that the pool has a keeper.
func TestJoinWhilePoolEnds(t *testing.T) {
	b := newTestbed(t)
	t.Setenv("POOL_TEST_LINGER", "1ms")
	controls := map[int]bool{}
	rounds := 25
	if testing.Short() {
		rounds = 4 // each starts about ten processes
	}
	for range rounds {
		j := b.start(1)
		if !strings.HasPrefix(j.says, "inside ") {
			t.Fatalf("got %q: %s", j.says, j.errs)
		}
		if !b.kept() {
			t.Fatal("the pool of a program that runs has no keeper")
		}
		controls[b.control()] = true
		if err := j.end(); err != nil {
			t.Fatalf("%v: %s", err, j.errs)
		}
	}
	t.Logf("%d control daemons for %d programs", len(controls), rounds)
	b.wait("the end of the pool", b.ended)
}

// TestControlDaemonDies checks that the next member gets a new control daemon, in a folder
// with the files of the old one.
func TestControlDaemonDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	control := b.control()
	if err := syscall.Kill(control, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.wait("the end of the keeper", func() bool { return !b.kept() })
	second := b.start(1)
	if !strings.HasPrefix(second.says, "inside ") || b.control() == control {
		t.Errorf("got %q with control daemon %d, before %d; %s", second.says, b.control(), control, second.errs)
	}
	if err := first.end(); err == nil {
		t.Error("the first program went on without its control daemon")
	}
	if err := second.end(); err != nil {
		t.Error(err)
	}
	b.wait("the end of the pool", b.ended)
}

// TestServerDies checks that members of a server that was killed fail and new ones do not.
func TestServerDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Servers) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if err := syscall.Kill(all[0].Servers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := first.cmd.Wait(); err == nil || !strings.Contains(first.errs.String(), "MpsRpcFailure") {
		t.Errorf("the member of a killed server: got %v: %s", err, first.errs)
	}
	second := b.start(1)
	if !strings.HasPrefix(second.says, "inside ") {
		t.Errorf("got %q; %s", second.says, second.errs)
	}
}

// TestKeeperDies checks that the next member starts another keeper.
func TestKeeperDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	for _, pid := range keepersOf(t, b.folder()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	b.wait("the end of the keeper", func() bool { return !b.kept() })
	control := b.control()
	second := b.start(1)
	if !b.kept() || b.control() != control || control == 0 {
		t.Errorf("kept %v, control daemon %d, before %d", b.kept(), b.control(), control)
	}
	if err := errors.Join(first.end(), second.end()); err != nil {
		t.Error(err)
	}
	b.wait("the end of the pool", b.ended)
}

// keepersOf returns the pids of the keepers of a folder.
func keepersOf(t *testing.T, folder string) (pids []int) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, _ := os.ReadFile(path)
		if strings.HasSuffix(string(text), "\x00keep\x00"+folder+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	if len(pids) != 1 {
		t.Fatalf("got keepers %v, want one", pids)
	}
	return pids
}

// TestOwnServer checks that a program which would use an MPS server of the user does not
// join a pool.
func TestOwnServer(t *testing.T) {
	b := newTestbed(t)
	_, err := Join(Request{Env: []string{pipeEnv + "=/misspelt"}})
	if !errors.Is(err, ErrOwnServer) || !strings.Contains(err.Error(), "/misspelt") {
		t.Errorf("with the variable: got %v", err)
	}
	defaultPipe = filepath.Join(b.dir, "default")
	cmd := exec.Command(mpstest.Control, "-d")
	cmd.Env = append(os.Environ(), pipeEnv+"="+defaultPipe)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { _ = syscall.Kill(controlPID(defaultPipe), syscall.SIGKILL) }()
	if _, err := Join(Request{}); !errors.Is(err, ErrOwnServer) || !strings.Contains(err.Error(), defaultPipe) {
		t.Errorf("with a control daemon in the default folder: got %v", err)
	}
	if b.control() != 0 {
		t.Error("a pool was started")
	}
}

// TestFull checks that the program after the last that MPS takes gets a clear answer.
func TestFull(t *testing.T) {
	b := newTestbed(t)
	p, err := open(b.info())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for i := range MaxClients {
		f, err := p.register(MemberInfo{PID: 1<<30 + i, Weight: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	j := b.start(1)
	if err := j.end(); err == nil || !strings.Contains(j.errs.String(), "the pool is full: it has 60 members") || !strings.Contains(j.errs.String(), "--pool-label") {
		t.Errorf("got %v: %s", err, j.errs)
	}
}

// TestWeights checks that a member with a smaller weight than another one may use a part
// of the GPU, unless its user says otherwise.
func TestWeights(t *testing.T) {
	b := newTestbed(t)
	heavy := b.start(4)
	light := b.start(1)
	own := b.start(1, threadsEnv+"=70")
	for want, j := range map[string]*job{"  \n": heavy, " 25 \n": light, " 70 \n": own} {
		if !strings.HasSuffix(j.says, "/pipe"+want) {
			t.Errorf("got %q, want %q at its end", j.says, want)
		}
	}
}

// TestNotPossible checks that what makes a pool impossible is an error that names it.
func TestNotPossible(t *testing.T) {
	b := newTestbed(t)
	t.Run("no MPS", func(t *testing.T) {
		t.Setenv("PATH", "/none")
		if _, err := Join(Request{}); !errors.Is(err, ErrNoMPS) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("control daemon fails", func(t *testing.T) {
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, controlProgram), []byte("#!/bin/sh\necho no device; exit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		if _, err := Join(Request{Keeper: keeperCommand()}); err == nil || !strings.Contains(err.Error(), "exit status 3: no device") {
			t.Errorf("got %v", err)
		}
		b.wait("the end of the keeper", b.ended)
	})
	t.Run("keeper fails", func(t *testing.T) {
		_, err := Join(Request{Keeper: []string{"/none"}})
		if err == nil || !strings.Contains(err.Error(), "start the keeper") {
			t.Errorf("got %v", err)
		}
		if b.control() != 0 {
			t.Error("a control daemon is left that nothing ends")
		}
	})
	t.Run("folder of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can make a folder of another user")
		}
		dir := filepath.Join(b.dir, "foreign")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		t.Setenv(FolderEnv, dir)
		_, joined := Join(Request{})
		_, listed := List()
		for _, err := range []error{joined, listed} {
			if err == nil || !strings.Contains(err.Error(), dir+" belongs to user 12345") || !strings.Contains(err.Error(), FolderEnv) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("folder of others", func(t *testing.T) {
		dir := filepath.Join(b.dir, "open")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		t.Setenv(FolderEnv, dir)
		if _, err := Join(Request{}); err == nil || !strings.Contains(err.Error(), "other users may write") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("long path", func(t *testing.T) {
		t.Setenv(FolderEnv, "/tmp/"+strings.Repeat("x", 80))
		if _, err := Join(Request{}); err == nil || !strings.Contains(err.Error(), FolderEnv) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("label", func(t *testing.T) {
		for _, label := range []string{"../x", "a/b", ".", "a b", strings.Repeat("a", 33)} {
			if _, err := Join(Request{Label: label}); err == nil || !strings.Contains(err.Error(), "pool label") {
				t.Errorf("%q: got %v", label, err)
			}
		}
	})
}

// TestKilledWhileStarting checks that the control daemon which a joiner was starting when it
// was killed is ended: the keeper is there before it.
func TestKilledWhileStarting(t *testing.T) {
	b := newTestbed(t)
	b.wrapControl(`if [ "$1" != -d ]; then exec "$real"; fi
: >"$dir/starting"
while [ -e "$dir/wait" ]; do sleep 0.02; done
"$real" -d && : >"$dir/started"`)
	b.mark("wait")
	j := b.command(1, "POOL_TEST_APPEAR=1h")
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.wait("the start of the control daemon", func() bool { return b.marked("starting") })
	_ = j.cmd.Process.Kill()
	_ = j.cmd.Wait()
	b.unmark("wait")
	b.wait("the control daemon", func() bool { return b.marked("started") })
	b.wait("the end of the pool", b.ended)
}

// TestKeeperTriesAgain checks that a keeper which cannot end the control daemon says so and
// tries again.
func TestKeeperTriesAgain(t *testing.T) {
	b := newTestbed(t)
	b.wrapControl(`if [ "$1" = -d ]; then exec "$real" -d; fi
read -r command
if [ "$command" = quit ] && [ -e "$dir/broken" ]; then : >"$dir/refused"; exit 1; fi
echo "$command" | "$real"`)
	b.mark("broken")
	j := b.start(1)
	if err := j.end(); err != nil {
		t.Fatalf("%v: %s", err, j.errs)
	}
	b.wait("an attempt to end the pool", func() bool { return b.marked("refused") })
	b.unmark("refused")
	b.wait("another attempt", func() bool { return b.marked("refused") })
	if !b.kept() {
		t.Error("the keeper has given up")
	}
	b.unmark("broken")
	b.wait("the end of the pool", b.ended)
	text, err := os.ReadFile(filepath.Join(b.folder(), "log", "keeper.log"))
	if err != nil || strings.Count(string(text), "trying again") != 1 {
		t.Errorf("got %v; log:\n%s", err, text)
	}
}

// TestFolderIsRemoved checks that the keeper ends if the folder does.
func TestFolderIsRemoved(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	control, keeper := b.control(), keepersOf(t, b.folder())[0]
	if err := os.RemoveAll(b.folder()); err != nil {
		t.Fatal(err)
	}
	b.wait("the end of the keeper", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", keeper))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	_ = syscall.Kill(control, syscall.SIGKILL)
	_ = j.end()
}

// TestFolderFor checks that all sessions of a user have the same pools.
func TestFolderFor(t *testing.T) {
	for uid, want := range map[int]string{0: "/run/giveway-pool", 1000: "/tmp/giveway-1000/pool"} {
		for _, session := range []string{"", "/run/user/1000", "/elsewhere"} {
			t.Setenv(FolderEnv, "")
			t.Setenv("XDG_RUNTIME_DIR", session)
			t.Setenv("TMPDIR", session)
			if got := folderFor(uid); got != want {
				t.Errorf("user %d in %q: got %s, want %s", uid, session, got, want)
			}
			t.Setenv(FolderEnv, "/mine")
			if got := folderFor(uid); got != "/mine" {
				t.Errorf("with %s: got %s", FolderEnv, got)
			}
		}
	}
}

// TestUnreadablePool checks that a pool which cannot be read does not hide the others.
func TestUnreadablePool(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	broken := filepath.Join(b.dir, "a-broken")
	if err := errors.Join(os.Mkdir(broken, 0o700), os.WriteFile(filepath.Join(broken, "pool.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	all, err := List()
	if len(all) != 1 || len(all[0].Clients) != 1 {
		t.Errorf("got %+v", all)
	}
	if err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("got %v, want an error that names %s", err, broken)
	}
	if err := j.end(); err != nil {
		t.Error(err)
	}
}

// TestRegisterLeavesOthersAlone checks that the file of a member that is registered already,
// for example in another pid namespace, is not changed.
func TestRegisterLeavesOthersAlone(t *testing.T) {
	b := newTestbed(t)
	p, err := open(b.info())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	f, err := p.register(MemberInfo{PID: 1 << 30, Weight: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := p.register(MemberInfo{PID: 1 << 30, Weight: 1}); err == nil {
		t.Error("it was registered twice")
	}
	if all, err := p.members(); err != nil || len(all) != 1 || all[0].Weight != 7 {
		t.Errorf("got %+v, %v", all, err)
	}
}
