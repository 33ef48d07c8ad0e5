package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/pool/mpstest"
)

// installMPS puts a double of NVIDIA's MPS in PATH and pools in a folder of their own. The
// pool must be gone when the test ends.
func installMPS(t *testing.T) {
	t.Helper()
	bin := t.TempDir()
	dir, err := os.MkdirTemp("", "gp") // a short path
	if err != nil {
		t.Fatal(err)
	}
	if err := mpstest.Install(bin); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv(pool.FolderEnv, dir)
	t.Cleanup(func() {
		all, _ := pool.List()
		for _, p := range all {
			t.Errorf("pool %+v is left", p)
			_ = syscall.Kill(p.Control, syscall.SIGKILL)
		}
		os.RemoveAll(dir)
	})
}

// pooled is a 'giveway run' of the double of a CUDA program.
type pooled struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	errs  strings.Builder
	says  string // by the program
}

func startPooled(t *testing.T, args ...string) *pooled {
	t.Helper()
	p := &pooled{cmd: giveway(append(append([]string{"run", "--no-shim"}, args...), "--", mpstest.Program)...)}
	p.cmd.Stderr = &p.errs
	p.stdin, _ = p.cmd.StdinPipe()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	p.says, _ = bufio.NewReader(out).ReadString('\n')
	return p
}

func (p *pooled) end(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &p.errs)
	}
}

// TestRunInPool checks that run --pool makes a program a client of the pool's server, that
// 'giveway pool' lists it, and that 'giveway pool end' leaves a pool with members alone.
func TestRunInPool(t *testing.T) {
	installMPS(t)
	p := startPooled(t, "--pool") // the class is batch
	if !strings.HasPrefix(p.says, "inside "+os.Getenv(pool.FolderEnv)) {
		t.Errorf("got %q: %s", p.says, &p.errs)
	}
	out, errs, code := call("pool", "end")
	if code != 0 || out != "0 pools were ended\n" {
		t.Errorf("end with a member: got %d, %s%s", code, out, errs)
	}
	out, _, _ = call("pool", "--json")
	var all []pool.Status
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || len(all[0].Clients) != 1 || len(all[0].Members) != 1 || all[0].Members[0].PID != p.cmd.Process.Pid {
		t.Errorf("list: got %v: %s", err, out)
	}
	out, _, _ = call("pool")
	if lines := strings.Split(out, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], "default  all ") || !strings.HasPrefix(lines[2], "No daemon answered") {
		t.Errorf("list: got %s", out)
	}
	p.end(t)
	if out, errs, code = call("pool", "end"); code != 0 || out != "1 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
	if out, _, _ = call("pool", "--json"); out != "[]\n" {
		t.Errorf("pool --json without a pool: got %q, want []", out)
	}
	if out, _, _ = call("pool"); !strings.HasPrefix(out, "You have no pool.") {
		t.Errorf("list: got %s", out)
	}
}

// TestRunInPoolByRule checks that the daemon's answer decides, that programs with different
// labels are in different pools, and that restore ends pools without members.
func TestRunInPoolByRule(t *testing.T) {
	installMPS(t)
	n := &daemonNode{started: api.RunStarted{Pool: "auto", Weight: 1}}
	startDaemon(t, n)
	a, b := startPooled(t, "--class", "batch"), startPooled(t, "--class", "batch", "--pool-label", "other")
	for _, p := range []*pooled{a, b} {
		p.end(t)
		if !strings.HasPrefix(p.says, "inside ") || p.errs.String() != "" {
			t.Errorf("got %q: %s", p.says, &p.errs)
		}
	}
	if a.says == b.says {
		t.Errorf("two labels: got one folder, %s", a.says)
	}
	n.mu.Lock()
	n.started = api.RunStarted{}
	n.mu.Unlock()
	c := startPooled(t, "--class", "batch", "--pool")
	if !strings.HasPrefix(c.says, "outside ") {
		t.Errorf("by a daemon that says no: got %q", c.says)
	}
	c.end(t)
	if out, err := giveway("run", "--class", "online", "--pool-label", "a", "--no-shim", "--", "true").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "giveway: --pool-label has no effect: true runs outside pools; give --pool as well\n") {
		t.Errorf("a label without a pool: got %v: %s", err, out)
	}
	if _, errs, code := call("restore"); code != 0 || errs != "" {
		t.Errorf("restore: got %d: %s", code, errs)
	}
}

// TestRunFromMember checks that a program which a member starts by 'giveway run' is outside
// the pool, or in the one that it asks for.
func TestRunFromMember(t *testing.T) {
	installMPS(t)
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := "export GIVEWAY_TEST_MAIN=1; " + bin + " run --class online --no-shim -- " + mpstest.Program + " </dev/null; " +
		bin + " run --pool --pool-label inner --no-shim -- " + mpstest.Program + " </dev/null"
	cmd := giveway("run", "--pool", "--no-shim", "--", "sh", "-c", script)
	out, err := cmd.Output()
	lines := strings.Split(string(out), "\n")
	if err != nil || len(lines) != 3 || lines[0] != "outside   " || !strings.HasPrefix(lines[1], "inside "+os.Getenv(pool.FolderEnv)+"/inner-") {
		t.Errorf("got %v: %q", err, out)
	}
	if out, errs, code := call("pool", "end"); code != 0 || out != "2 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
}

// TestRunOutsidePool checks that a program which cannot join runs nevertheless, with a
// warning if the pool was asked for by name.
func TestRunOutsidePool(t *testing.T) {
	installMPS(t)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/my/own")
	startDaemon(t, &daemonNode{started: api.RunStarted{Pool: "on"}})
	p := startPooled(t, "--pool")
	if p.says != "outside /my/own  \n" {
		t.Errorf("got %q", p.says)
	}
	p.end(t)
	const want = "giveway: it uses an MPS server of yours: CUDA_MPS_PIPE_DIRECTORY is /my/own; unset it to use the pool; cuda-program runs outside the pool\n"
	if p.errs.String() != want {
		t.Errorf("got %q, want %q", &p.errs, want)
	}
	for _, args := range [][]string{{"--class", "online", "--pool"}, {"--pool", "--pool-label", "a/b"}, {"--pool=sometimes"}} {
		if _, errs, code := call(append(append([]string{"run"}, args...), "--", "true")...); code != exitUsage {
			t.Errorf("%q: got %d: %s", args, code, errs)
		}
	}
}

// TestRunBesideFault checks that a program which MPS would refuse after a fault runs outside, and
// that 'giveway pool' names the processes that must exit.
func TestRunBesideFault(t *testing.T) {
	installMPS(t)
	first := startPooled(t, "--pool")
	all, err := pool.List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	client := all[0].Clients[0]
	if err := syscall.Kill(client, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("A member of pool default has had a fault: MPS takes no new one until its clients have exited: %d.\n", client)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, errs, code := call("pool")
		if code == 0 && strings.Contains(out, want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %d: %s%s, want %q", code, out, errs, want)
		}
	}
	second := startPooled(t, "--pool")
	second.end(t)
	if second.says != "outside   \n" || !strings.Contains(second.errs.String(), "has had a fault") || !strings.Contains(second.errs.String(), "cuda-program runs outside the pool") {
		t.Errorf("got %q: %s", second.says, &second.errs)
	}
	first.end(t)
	if out, errs, code := call("pool", "end"); code != 0 || out != "1 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
}

// TestPsShowsPoolFault checks that 'giveway ps' names the processes that must exit after a fault
// in a pool, for as long as they run.
func TestPsShowsPoolFault(t *testing.T) {
	installMPS(t)
	startDaemon(t, &daemonNode{started: api.RunStarted{Pool: "on", Weight: 1}})
	p := startPooled(t, "--pool")
	all, err := pool.List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	client := all[0].Clients[0]
	line := fmt.Sprintf("\nA member of pool default has had a fault: MPS takes no new one until its clients have exited: %d.\n", client)
	if out, errs, code := call("ps"); code != 0 || strings.Contains(out, "had a fault") {
		t.Errorf("before the fault: got %d: %s%s", code, out, errs)
	}
	if err := syscall.Kill(client, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventually := func(what string, is func(out string) bool, args ...string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			out, errs, code := call(args...)
			if code == 0 && is(out) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: got %d: %s%s", what, code, out, errs)
			}
		}
	}
	eventually("the fault", func(out string) bool { return strings.HasSuffix(out, line) }, "ps")
	eventually("the fault in JSON", func(out string) bool {
		var printed psJSON
		return json.Unmarshal([]byte(out), &printed) == nil && len(printed.Faults) == 1 && printed.Faults[0].Clients[0] == client
	}, "ps", "--json")
	p.end(t)
	eventually("the end of the fault", func(out string) bool { return !strings.Contains(out, "had a fault") }, "ps")
	if out, errs, code := call("pool", "end"); code != 0 || out != "1 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
}

// TestWeightByRule checks that the weight by which MPS limits a member is the daemon's, and
// that 'giveway pool' says when no daemon was asked.
func TestWeightByRule(t *testing.T) {
	installMPS(t)
	alone := startPooled(t, "--pool", "--weight", "4")
	out, _, code := call("pool")
	if want := fmt.Sprintf("No daemon answered when 'giveway run' started as process %d: ", alone.cmd.Process.Pid); code != 0 || !strings.Contains(out, want) {
		t.Errorf("got %d: %s\nwant %q", code, out, want)
	}
	n := &daemonNode{started: api.RunStarted{Pool: "on", Weight: 2}}
	startDaemon(t, n)
	ruled := startPooled(t, "--pool")
	if !strings.HasSuffix(ruled.says, "/pipe 50 \n") {
		t.Errorf("weight 2 by a rule beside 4: got %q, want 50 %% of the threads", ruled.says)
	}
	alone.end(t)
	if out, _, _ := call("pool"); strings.Contains(out, "No daemon answered") {
		t.Errorf("got %s", out)
	}
	ruled.end(t)
	if out, errs, code := call("pool", "end"); code != 0 || out != "1 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
}

// TestPriorityByRule checks that a program whose priority is negative, by the daemon's answer or,
// without a daemon, by the command line, is below normal for MPS.
func TestPriorityByRule(t *testing.T) {
	installMPS(t)
	n := &daemonNode{started: api.RunStarted{Pool: "on", Weight: 1, Priority: -3}}
	priority := func(args ...string) (value string) {
		t.Helper()
		p := startPooled(t, append([]string{"--pool"}, args...)...)
		defer p.end(t)
		all, err := pool.List()
		if err != nil || len(all) != 1 || len(all[0].Clients) != 1 {
			t.Fatalf("got %+v, %v", all, err)
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", all[0].Clients[0]))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range strings.Split(string(env), "\x00") {
			if v, is := strings.CutPrefix(e, "CUDA_MPS_CLIENT_PRIORITY="); is {
				value = v
			}
		}
		return value
	}
	if got := priority("--priority", "-1"); got != "1" {
		t.Errorf("without a daemon: got %q, want 1", got)
	}
	startDaemon(t, n)
	if got := priority(); got != "1" {
		t.Errorf("by a rule: got %q, want 1", got)
	}
	n.mu.Lock()
	n.started.Priority = 0
	n.mu.Unlock()
	if got := priority(); got != "" {
		t.Errorf("without a priority: got %q", got)
	}
	if out, errs, code := call("pool", "end"); code != 0 || out != "1 pools were ended\n" {
		t.Errorf("end: got %d, %s%s", code, out, errs)
	}
}

// TestOneBrokenPool checks that a pool which cannot be read is an error, and that the others
// are listed and ended nevertheless.
func TestOneBrokenPool(t *testing.T) {
	installMPS(t)
	p := startPooled(t, "--pool")
	broken := filepath.Join(os.Getenv(pool.FolderEnv), "a-broken")
	if err := errors.Join(os.Mkdir(broken, 0o700), os.WriteFile(filepath.Join(broken, "pool.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := call("pool"); code == 0 || !strings.Contains(out, "default  all ") || !strings.Contains(errs, broken) {
		t.Errorf("list: got %d: %s%s", code, out, errs)
	}
	p.end(t)
	if out, errs, code := call("pool", "end"); code == 0 || out != "1 pools were ended\n" || !strings.Contains(errs, broken) {
		t.Errorf("end: got %d: %s%s", code, out, errs)
	}
}

// TestRestoreEndsPoolsWithoutDaemon checks that pools without members are ended by restore
// if no daemon runs, but not by restore --left.
func TestRestoreEndsPoolsWithoutDaemon(t *testing.T) {
	installMPS(t)
	was := LeftRestore
	LeftRestore = func([]string, *slog.Logger) (int, bool, error) { return 0, false, nil }
	defer func() { LeftRestore = was }()
	startPooled(t, "--pool").end(t)
	for _, args := range [][]string{{"restore", "--left"}, {"restore"}} {
		all, err := pool.List()
		if err != nil || len(all) != 1 {
			t.Fatalf("before %v: got %v, %v; want one pool", args, all, err)
		}
		if _, errs, code := call(args...); code != 0 {
			t.Errorf("%v: got %d: %s", args, code, errs)
		}
	}
	if all, err := pool.List(); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v; want that restore ended it", all, err)
	}
}
