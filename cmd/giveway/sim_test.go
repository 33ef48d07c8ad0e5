package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
)

// The whole program as a user runs it: the built binary, a daemon on simulated devices,
// and the other commands in processes of their own.

// node is a running daemon on a scenario of this test.
type node struct {
	*testing.T
	program string
	socket  string
	flags   []string // more flags of the daemon
	daemon  *exec.Cmd
}

const scenario = `name: test
length: 10s
devices: [{id: gpu0, model: nvidia-h200}]
clients:
  - {name: serve, class: online, arrival: {periodic: 20ms}, kernels: {count: 10, time: 50us}}
  - {name: train, class: batch, arrival: {closed: 0s, depth: 4}, kernels: {count: 20, time: 100us}}
  - {name: embed, class: batch, arrival: {closed: 0s, depth: 4}, kernels: {count: 20, time: 100us}}
`

// build builds the program once for all tests of this package.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "giveway")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", program}, flags, []string{"."})...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: got %v\n%s", err, out)
	}
	return program
}

func (n *node) start() {
	n.Helper()
	file := filepath.Join(filepath.Dir(n.program), "test.yaml")
	if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
		n.Fatal(err)
	}
	n.daemon = exec.Command(n.program, append([]string{"daemon", "--sim", file, "--socket", n.socket}, n.flags...)...)
	var log strings.Builder
	n.daemon.Stderr = &log
	if err := n.daemon.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		_ = n.daemon.Process.Kill()
		_ = n.daemon.Wait()
		if n.Failed() {
			n.Logf("the daemon's log:\n%s", log.String())
		}
	})
	n.eventually("the daemon finds three processes", func() bool { return len(n.processes()) == 3 })
}

// run runs a command and returns its output; fails says that it must fail.
func (n *node) run(fails bool, args ...string) string {
	n.Helper()
	cmd := exec.Command(n.program, args...)
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+n.socket)
	out, err := cmd.CombinedOutput()
	if (err != nil) != fails {
		n.Fatalf("giveway %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// doctor returns what giveway doctor prints. It fails on a machine that is too busy for the
// simulation, so its exit status does not count.
func (n *node) doctor() string {
	cmd := exec.Command(n.program, "doctor")
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+n.socket)
	out, _ := cmd.CombinedOutput()
	return string(out)
}

func (n *node) processes() map[string]api.Process {
	cmd := exec.Command(n.program, "ps", "--json")
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+n.socket)
	out, err := cmd.Output()
	var all struct{ Processes []api.Process }
	if err != nil || json.Unmarshal(out, &all) != nil {
		return nil
	}
	byName := make(map[string]api.Process)
	for _, p := range all.Processes {
		byName[strings.TrimPrefix(p.Command, "sim: ")] = p
	}
	return byName
}

func (n *node) pid(name string) string {
	n.Helper()
	text, _ := json.Marshal(n.processes()[name].PID)
	return string(text)
}

func (n *node) eventually(what string, so func() bool) {
	n.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if so() {
			return
		}
	}
	n.Fatalf("after 20 s it does not hold that %s; processes: %+v", what, n.processes())
}

func (n *node) state(name string) string { return n.processes()[name].Queues[0].State }

func (n *node) contains(out, want string) {
	n.Helper()
	if !strings.Contains(out, want) {
		n.Errorf("got %q, want it to contain %q", out, want)
	}
}

// TestSimulatedNode drives a daemon on simulated devices with every command.
func TestSimulatedNode(t *testing.T) {
	program := build(t)
	dir, err := os.MkdirTemp("", "gw") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{T: t, program: program, socket: filepath.Join(dir, "s")}
	n.start()

	n.contains(n.doctor(), "simulated")
	n.contains(n.run(false, "ps"), "sim: serve")
	n.eventually("requests are answered", func() bool {
		r := n.processes()["serve"].Requests
		return r != nil && r.Count > 10 && r.P99 > 0
	})
	n.eventually("batch work makes progress", func() bool { return n.processes()["train"].Queues[0].Served > 0 })

	n.run(false, "set", n.pid("train"), "--weight", "3", "--class", "idle")
	if p := n.processes()["train"]; p.Class() != "idle" || p.Attrs.Source(attr.Class) != attr.FromSet {
		t.Errorf("after set it is %s (%v)", p.Class(), p.Attrs.Source(attr.Class))
	}
	n.run(false, "set", n.pid("train"), "--class", "batch")
	n.run(false, "pause", n.pid("train"))
	n.eventually("it is paused", func() bool { return n.state("train") == "stopped" })
	served := n.processes()["train"].Queues[0].Served
	time.Sleep(200 * time.Millisecond)
	if more := n.processes()["train"].Queues[0].Served; more > served+time.Millisecond {
		t.Errorf("paused, and yet it was served %v", more-served)
	}
	n.run(false, "resume", n.pid("train"), "--tree")
	n.eventually("it makes progress again", func() bool { return n.processes()["train"].Queues[0].Served > served+10*time.Millisecond })

	n.contains(n.run(false, "policy", "wfq"), "wfq")
	n.eventually("both batch processes run together", func() bool { return n.state("train") == "running" && n.state("embed") == "running" })
	n.run(true, "policy", "best")
	n.contains(n.run(false, "policy", "rr", "--device", "0"), "rr on gpu0")
	n.contains(n.run(false, "policy"), "wfq\nrr on gpu0")
	n.contains(n.run(false, "policy", "giveway:turn=20ms"), "turn=20ms")
	n.run(false, "hint", n.pid("serve"), "--expect", "5ms")
	n.run(true, "set", "1", "--class", "batch")
	out := n.run(false, "run", "--class", "batch", "--", "sh", "-c", "echo preloaded: $LD_PRELOAD.")
	n.contains(out, "preloaded: .\n")
	n.contains(out, "simulates its devices")
	n.contains(n.run(false, "policy", "wfq"), "wfq")
	n.contains(n.run(false, "policy", "rr", "--device", "0"), "rr on gpu0")
	n.contains(n.run(false, "policy", "--device", "0"), "rr on gpu0")
	n.contains(n.run(false, "policy", "giveway"), "Also on gpu0, which had rr")

	n.run(false, "policy", "external", "--exec", "sleep 1000", "--deadline", "20ms")
	n.eventually("the hanging policy is reported", func() bool {
		return strings.Contains(n.run(false, "policy"), "has not answered within 20ms")
	})
	before := n.processes()["serve"].Requests.Count
	n.eventually("requests are answered all the same", func() bool { return n.processes()["serve"].Requests.Count > before+10 })
	n.contains(n.run(false, "policy", "slo"), "slo")
	n.externalPolicy()

	n.run(false, "restore")
	for name, p := range n.processes() {
		if p.Queues[0].State != "running" || p.Queues[0].Slice != 0 {
			t.Errorf("restored, %s is %s with slice %v", name, p.Queues[0].State, p.Queues[0].Slice)
		}
	}
	n.contains(n.run(false, "policy"), "native")
}

// externalPolicy puts the example in Python in force: highest priority first.
func (n *node) externalPolicy() {
	n.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		n.Log("python3 is not installed: the example of an external policy is not run")
		return
	}
	example, err := filepath.Abs("../../examples/policy/priority.py")
	if err != nil {
		n.Fatal(err)
	}
	n.run(false, "set", n.pid("train"), "--priority", "5")
	n.run(false, "policy", "external", "--exec", "exec python3 "+example, "--deadline", "5s")
	n.eventually("the policy process decides", func() bool { return !strings.Contains(n.run(false, "policy"), "does not decide") })
	n.eventually("the lower priority is stopped", func() bool { return n.state("embed") == "stopped" && n.state("train") == "running" })
	n.run(false, "policy", "slo")
}

// TestSimulatedNodeIsKilled: after SIGKILL the next daemon takes the socket over, and
// SIGTERM ends it in order.
func TestSimulatedNodeIsKilled(t *testing.T) {
	program := build(t)
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{T: t, program: program, socket: filepath.Join(dir, "s")}
	n.start()
	if err := n.daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.daemon.Wait()
	n.contains(n.run(true, "ps"), "daemon")
	conf := filepath.Join(dir, "giveway.yaml")
	if err := os.WriteFile(conf, []byte("trace: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.flags = []string{"--config", conf}
	n.start()
	n.contains(n.doctor(), "no effect on simulated devices")
	if err := n.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.daemon.Wait(); err != nil {
		t.Errorf("after SIGTERM the daemon ended with %v", err)
	}
	if _, err := os.Stat(n.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: got %v", err)
	}
}
