package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/pool/mpstest"
)

// TestMain lets the tests start the command line as a process of its own, and hides a
// daemon that happens to run.
func TestMain(m *testing.M) {
	mpstest.RunIfNamed()
	if number := os.Getenv(filterEnv); number != "" {
		fmt.Fprintln(os.Stderr, execFiltered(number)) // returns if it failed
		os.Exit(1)
	}
	if os.Getenv("GIVEWAY_TEST_MAIN") != "" || slices.Equal(os.Args[1:], []string{tryCommand}) || len(os.Args) > 1 && os.Args[1] == keeperCommand {
		os.Unsetenv("GIVEWAY_TEST_MAIN")
		os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Setenv("GIVEWAY_SOCKET", "/none.sock")
	os.Setenv("GIVEWAY_POOLS", "/none") // no pools of this machine
	os.Unsetenv("COLUMNS")              // tables of full width
	os.Exit(m.Run())
}

// giveway returns the command line as a process of its own, in a process group of its own
// so that the terminal of the tests does not affect it.
func giveway(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "GIVEWAY_TEST_MAIN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func shell(script string) *exec.Cmd {
	return giveway("run", "--class", "batch", "--no-shim", "--", "sh", "-c", script)
}

func statusOf(cmd *exec.Cmd) string {
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return ws.Signal().String()
	}
	return strconv.Itoa(ws.ExitStatus())
}

const runWarning = "giveway: no daemon is running at /none.sock: start one with 'giveway daemon --socket /none.sock'; sh runs all the same, and gets its attributes as soon as a daemon answers\n"

// TestRunStatus: the exit status of run is that of the program.
func TestRunStatus(t *testing.T) {
	check := func(t *testing.T, script, want string) {
		t.Parallel()
		var stderr bytes.Buffer
		cmd := shell("ulimit -c 0; " + script)
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if got := statusOf(cmd); got != want || stderr.String() != runWarning {
			t.Errorf("%s, want %s; %s", got, want, &stderr)
		}
	}
	for script, want := range map[string]string{"true": "0", "exit 1": "1", "exit 42": "42", "exit 255": "255", "exit 130": "130"} {
		t.Run(script, func(t *testing.T) { check(t, script, want) })
	}
	for name, s := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV,
		"ABRT": syscall.SIGABRT, "USR1": syscall.SIGUSR1, "PIPE": syscall.SIGPIPE, "HUP": syscall.SIGHUP,
	} {
		t.Run(name, func(t *testing.T) {
			skipIgnored(t, s)
			check(t, "kill -"+name+" $$", s.String())
		})
	}
}

// skipIgnored skips a test that needs a signal which was ignored when the tests began, as
// SIGHUP is under nohup: child processes inherit that, and a shell cannot undo it.
func skipIgnored(t *testing.T, s syscall.Signal) {
	t.Helper()
	if signal.Ignored(s) {
		t.Skipf("%v is ignored here, and by all child processes", s)
	}
}

func TestRunNothing(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	broken := filepath.Join(t.TempDir(), "broken")
	if err := errors.Join(os.WriteFile(plain, nil, 0o644), os.WriteFile(broken, []byte("#!/none\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"no-such-program": exitNotFound, "/none/x": exitNotFound, plain: exitCannotRun, broken: exitCannotRun, t.TempDir(): exitCannotRun} {
		_, errs, code := call("run", "--class", "batch", "--no-shim", "--", path)
		if code != want || !strings.Contains(errs, "giveway: run "+path+": ") {
			t.Errorf("%s: got exit %d, want %d: %s", path, code, want, errs)
		}
		_, errs, code = call("run", "--class", "batch", "--no-shim", "--json", "--", path)
		lines := strings.SplitAfter(errs, "\n") // the first may be a warning
		var said map[string]string
		if err := json.Unmarshal([]byte(lines[max(0, len(lines)-2)]), &said); err != nil || code != want || !strings.HasPrefix(said["error"], "run "+path+": ") {
			t.Errorf("%s, in JSON: got exit %d, want %d: %v: %s", path, code, want, err, errs)
		}
	}
}

// TestRunRefused: if the daemon refuses a run, the program runs with a warning.
func TestRunRefused(t *testing.T) {
	startDaemon(t, &daemonNode{refuses: errors.New("not today")})
	cmd := shell("true")
	out, _ := cmd.CombinedOutput()
	if got := string(out); statusOf(cmd) != "0" || !strings.Contains(got, "not today") || !strings.HasSuffix(got, "; sh runs without these attributes\n") {
		t.Errorf("status %s: got %s", statusOf(cmd), out)
	}
}

// TestRunBeforeDaemon: the program is announced to a daemon that is started later.
func TestRunBeforeDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "daemon.sock")
	t.Setenv("GIVEWAY_SOCKET", socket)
	cmd, _ := begun(t, "echo ready; exec sleep 60")
	n := &daemonNode{}
	startDaemon(t, n)
	eventually(t, "announcement", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		v, ok := n.runs[cmd.Process.Pid]
		return ok && v == attr.Must("class=batch")
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestRunFiles: input, output, arguments and environment reach the program unchanged.
func TestRunFiles(t *testing.T) {
	cmd := giveway("run", "--class=batch", "--no-shim", "--json", "sh", "-c", `cat; echo "$0 $1 $X"; echo err >&2`, "--class", "x y")
	cmd.Env = append(cmd.Env, "X=z")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in\n"), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "in\n--class x y z\n" {
		t.Errorf("got output %q", &stdout)
	}
	if !strings.HasPrefix(stderr.String(), `{"warning":"no daemon`) || !strings.HasSuffix(stderr.String(), "}\nerr\n") {
		t.Errorf("got errors %q", &stderr)
	}
}

// hang is longer than any test step takes on a slow machine.
const hang = 30 * time.Second

// begun starts a script and waits until it prints "ready".
func begun(t *testing.T, script string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := shell(script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(hang)); err != nil {
		t.Fatal(err)
	}
	line := func() string {
		var b []byte
		for c := make([]byte, 1); ; {
			if n, err := out.Read(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("no further output after %q", b)
			} else if n == 0 || err != nil || c[0] == '\n' {
				return string(b)
			}
			b = append(b, c[0])
		}
	}
	if got := line(); got != "ready" {
		t.Fatalf("got %q, want ready", got)
	}
	return cmd, line
}

func TestRunSignals(t *testing.T) {
	for name, s := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	} {
		t.Run(name, func(t *testing.T) {
			skipIgnored(t, s)
			t.Parallel()
			cmd, line := begun(t, "trap 'echo got; exit 7' "+name+"; echo ready; while :; do sleep 0.01; done")
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if got := line(); got != "got" {
				t.Errorf("it said %q", got)
			}
			_ = cmd.Wait()
			if got := statusOf(cmd); got != "7" {
				t.Errorf("ended with %s", got)
			}
		})
	}
	cmd, _ := begun(t, "echo ready; exec sleep 60")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if got := statusOf(cmd); got != "terminated" {
		t.Errorf("a program that does not look: ended with %s", got)
	}
}

func stateOf(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone"
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))[0]
}

var eventually = drivertest.Eventually

// TestRunStops: a program that is stopped from the keyboard stops run as well, so that the
// shell sees it, and both continue together.
func TestRunStops(t *testing.T) {
	cmd, line := begun(t, "trap 'echo on; exit 3' USR1; echo ready; echo $$; while :; do sleep 0.01; done")
	pid, err := strconv.Atoi(line())
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(syscall.SIGTSTP)
	eventually(t, "both stopped", func() bool { return stateOf(pid) == "T" && stateOf(cmd.Process.Pid) == "T" })
	_ = cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "both going on", func() bool { return stateOf(pid) != "T" && stateOf(cmd.Process.Pid) != "T" })
	_ = cmd.Process.Signal(syscall.SIGUSR1)
	if got := line(); got != "on" {
		t.Errorf("it said %q", got)
	}
	_ = cmd.Wait()
	if got := statusOf(cmd); got != "3" {
		t.Errorf("ended with %s", got)
	}
}

// TestRunKilled: killing run kills the program.
func TestRunKilled(t *testing.T) {
	cmd, line := begun(t, "echo ready; echo $$; exec sleep 60")
	pid, err := strconv.Atoi(line())
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "end of the program", func() bool { s := stateOf(pid); return s == "gone" || s == "Z" })
}

// TestRunAnnounced: the program is announced to the daemon while it runs, and to a daemon
// that is started later.
func TestRunAnnounced(t *testing.T) {
	n := &daemonNode{}
	stop := startDaemon(t, n)
	known := func(pid int) (v attr.Values, ok bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		v, ok = n.runs[pid]
		return v, ok
	}
	var stderr bytes.Buffer
	cmd := giveway("run", "--slo", "10ms", "--weight", "3", "--no-shim", "--", "sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	eventually(t, "announcement", func() bool { _, ok := known(pid); return ok })
	if v, _ := known(pid); v != attr.Must("class=online slo=10ms weight=3") {
		t.Errorf("announced as %v", v)
	}
	stop()
	if _, ok := known(pid); ok {
		t.Error("the run outlives the daemon")
	}
	startDaemon(t, n)
	eventually(t, "second announcement", func() bool { _, ok := known(pid); return ok })
	time.Sleep(100 * time.Millisecond) // for the shell to set its trap
	_ = cmd.Process.Signal(syscall.SIGUSR1)
	_ = cmd.Wait()
	if got := statusOf(cmd); got != "5" || stderr.String() != "" {
		t.Errorf("ended with %s: got %s", got, &stderr)
	}
	eventually(t, "end of the run", func() bool { _, ok := known(pid); return !ok })
}

// TestRunWarnsOfIgnoredAttributes: run prints a warning that names the policies which use
// the attribute.
func TestRunWarnsOfIgnoredAttributes(t *testing.T) {
	startDaemon(t, &daemonNode{started: api.RunStarted{Ignored: []api.Ignored{{Name: "slo", Mark: "ignored by rr", Reason: "policy rr does not use it; policies that do: slo"}}}})
	for args, want := range map[string]string{
		"--slo 5ms":                    "giveway: slo 5ms has no effect now: policy rr does not use it; policies that do: slo\n",
		"--slo 5ms --json":             `{"warning":"slo 5ms has no effect now: policy rr does not use it; policies that do: slo"}` + "\n",
		"--class batch --weight 2":     "",
		"--class online --weight=2":    "",
		"--class online --slo 1500us ": "giveway: slo 1.5ms has no effect now: policy rr does not use it; policies that do: slo\n",
	} {
		cmd := giveway(append(append([]string{"run", "--no-shim"}, strings.Fields(args)...), "--", "true")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil || stderr.String() != want {
			t.Errorf("run %s: %v, got %q, want %q", args, err, &stderr, want)
		}
	}
}

// TestHintSelf: --self gives a hint for the calling program, also by way of a script, if
// the daemon lists it.
func TestHintSelf(t *testing.T) {
	me := os.Getpid()
	hint := func(n *daemonNode) (received, output, status string) {
		stop := startDaemon(t, n)
		cmd := exec.Command("sh", "-c", `"$0" hint --self --begin 7; exit $?`, fmt.Sprintf("/proc/%d/exe", me))
		cmd.Env = append(os.Environ(), "GIVEWAY_TEST_MAIN=1")
		out, _ := cmd.CombinedOutput()
		stop()
		return fmt.Sprint(n.changes), string(out), statusOf(cmd)
	}
	received, output, status := hint(&daemonNode{none: true})
	if received != "[]" || status != "1" || !strings.Contains(output, "give the PID of a process that it lists") {
		t.Errorf("a script of no listed program: the daemon got %s, status %s: %s", received, status, output)
	}
	received, output, status = hint(&daemonNode{more: []api.Process{{PID: me, UID: uint32(os.Getuid())}}})
	if received != fmt.Sprintf(`[hint %d {"begin":7}]`, me) || status != "0" {
		t.Errorf("a script of a listed program: the daemon got %s, status %s: %s", received, status, output)
	}
}
