package daemon

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// TestParametersChangeWhileThePolicyRuns checks that choosing the policy in force with
// another parameter keeps its state: under rr the queue whose turn it is runs on, where a
// new instance would begin with the first queue.
func TestParametersChangeWhileThePolicyRuns(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	first, _ := sleeper(t)
	second, _ := sleeper(t)
	b.mustOffer(t, first)
	b.mustOffer(t, second)
	set := func(quantum string) {
		t.Helper()
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: "rr", Params: map[string]string{"quantum": quantum}}); err != nil {
			t.Fatal(err)
		}
	}
	set("3s")
	eventually(t, "it is the turn of the second queue", func() bool { return b.hardware(first.PID).stopped && !b.hardware(second.PID).stopped })
	set("10s")
	time.Sleep(200 * time.Millisecond)
	if !b.hardware(first.PID).stopped || b.hardware(second.PID).stopped {
		t.Errorf("got first queue stopped %v, second %v, want true, false", b.hardware(first.PID).stopped, b.hardware(second.PID).stopped)
	}
	if got := d.Policy().Params["quantum"]; got != "10s" {
		t.Errorf("got quantum %q, want 10s", got)
	}
}

// TestExternalPolicyDecides runs the example in Python: the process of higher priority
// runs, the other is stopped. When another policy is chosen the process is ended.
func TestExternalPolicyDecides(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	low, _ := sleeper(t)
	high, _ := sleeper(t)
	b.mustOffer(t, low)
	b.mustOffer(t, high)
	if _, err := d.Change(ourselves, high.PID, given("priority=5")); err != nil {
		t.Fatal(err)
	}
	example, _ := filepath.Abs("../../examples/policy/priority.py")
	pidFile := filepath.Join(t.TempDir(), "pid")
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: "external", Params: map[string]string{
		"exec": fmt.Sprintf("echo $$ > %s; exec python3 %s", pidFile, example), "deadline": "5s",
	}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lower priority is stopped", func() bool { return b.hardware(low.PID).stopped && !b.hardware(high.PID).stopped })
	if p := d.Policy(); p.Name != "external" || p.Overruled != "" {
		t.Errorf("got policy %+v, want external, not overruled", p)
	}
	text, _ := os.ReadFile(pidFile)
	pid := 0
	_, _ = fmt.Sscan(string(text), &pid)
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: "native"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both run", func() bool { return !b.hardware(low.PID).stopped && !b.hardware(high.PID).stopped })
	if _, err := proc.Look(pid); pid == 0 || err == nil {
		t.Errorf("the policy process %d still runs", pid)
	}
}

// TestExternalPolicyFails: in each case of a failing policy process the fallback policy
// decides, orders of owners are carried out, and the daemon can be stopped.
func TestExternalPolicyFails(t *testing.T) {
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()              // connections are neither accepted nor answered
	const missed, met = "20ms", "10s" // deadlines; a shell may take seconds to answer on a busy machine
	for _, tt := range []struct{ name, key, value, deadline string }{
		{"hangs", "exec", "sleep 1000", missed},
		{"reads and never answers", "exec", "cat >/dev/null", missed},
		{"exits", "exec", "exit 3", missed},
		{"does not exist", "exec", "/no/such/policy", missed},
		{"is wrong", "exec", "cat", missed},
		{"never ends a line", "exec", "yes | tr -d '\\n'", missed},
		{"floods", "exec", "yes '{\"answer\":1}'", missed},
		{"grants nothing", "exec", `while read l; do n=${l#*:}; echo "{\"answer\":${n%%,*}}"; done`, met},
		{"grants another's queue", "exec", `while read l; do n=${l#*:}; echo "{\"answer\":${n%%,*},\"grants\":[{\"queue\":999}]}"; done`, missed},
		{"no socket", "socket", "/no/such/socket", missed},
		{"silent socket", "socket", silent.Addr().String(), missed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBackend(t.TempDir())
			d := newTestDaemon(b)
			stop := runDaemon(t, d)
			online, _ := sleeper(t)
			train, _ := sleeper(t)
			b.mustOffer(t, online)
			b.mustOffer(t, train)
			set := func(pid int, attrs string) {
				t.Helper()
				if _, err := d.Change(ourselves, pid, given(attrs)); err != nil {
					t.Fatal(err)
				}
			}
			set(online.PID, "class=online")
			set(train.PID, "class=batch")
			// As after a restart of the daemon, which does not refuse it.
			d.repeatPolicy(api.Policy{Name: "external", Params: map[string]string{tt.key: tt.value, "deadline": tt.deadline}})
			eventually(t, "the policy is reported as failing", func() bool { return d.Policy().Overruled != "" })
			if tt.name != "grants nothing" { // that one is overruled by the scheduler: the vendor's default
				eventually(t, "the fallback policy slices batch work", func() bool { return b.hardware(train.PID).slice == sched.MinSlice })
			}
			eventually(t, "doctor shows it", func() bool { return !policyCheck(d.Policy()).OK })
			eventually(t, "metrics show it", func() bool { return strings.Contains(scraped(d), "\ngiveway_policy_overruled 1\n") })
			if tt.name == "grants nothing" {
				eventually(t, "the scheduler has overruled the policy once, by metrics and record", func() bool {
					return strings.Contains(scraped(d), `giveway_policy_overrules_total{device="fake0"} 1`) && notes(t, d, "overruled", "external") == 1
				})
			}
			set(train.PID, "paused=true")
			eventually(t, "an order is carried out", func() bool { return b.hardware(train.PID).stopped })
			set(train.PID, "paused=false")
			eventually(t, "it is resumed", func() bool { return !b.hardware(train.PID).stopped && !b.hardware(online.PID).stopped })
			begin := time.Now()
			stop()
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("the daemon took %v to stop", took)
			}
			if got := b.hardware(train.PID); got != (hardware{}) {
				t.Errorf("after the daemon stopped: got %+v, want no change left", got)
			}
		})
	}
}

// TestExternalPolicyMustStart: an order for a policy process that does not run is refused with
// its message, and the policy in force stays.
func TestExternalPolicyMustStart(t *testing.T) {
	defer func(d time.Duration) { extpolicy.StartTime = d }(extpolicy.StartTime)
	extpolicy.StartTime = 10 * time.Second // this machine may be busy
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	defer runDaemon(t, d)()
	for _, tt := range []struct{ key, value, want string }{
		{"exec", "nosuch", "nosuch: not found"},
		{"exec", "exit 3", "exit status 3"},
		{"socket", "/no/such/socket", "no such file"},
	} {
		_, err := d.SetPolicy(ourselves, api.Policy{Name: "external", Params: map[string]string{tt.key: tt.value}})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.value, err, tt.want)
		}
		if p := d.Policy(); p.Name != "giveway" || !policyCheck(p).OK {
			t.Errorf("%s: got %+v, want giveway in force", tt.value, p)
		}
	}
	connections := 0
	if d.events.inLoop(func() { connections = len(d.external) }); connections != 0 {
		t.Errorf("got %d connections, want none", connections)
	}
	d.repeatPolicy(api.Policy{Name: "external", Params: map[string]string{"exec": "nosuch"}})
	eventually(t, "the log has why it fails", func() bool { return notes(t, d, "external", "nosuch: not found") == 1 })
}

// TestExternalPolicyParameters: bad parameters are refused with what is allowed.
func TestExternalPolicyParameters(t *testing.T) {
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	defer runDaemon(t, d)()
	for _, tt := range []struct {
		params map[string]string
		want   string
	}{
		{nil, "either socket"},
		{map[string]string{"socket": "/a", "exec": "b"}, "either socket"},
		{map[string]string{"socket": "a"}, "not an absolute path"},
		{map[string]string{"exec": "b", "deadline": "0s"}, "from 1ms to 10s"},
		{map[string]string{"exec": "b", "deadline": "soon"}, "from 1ms to 10s"},
		{map[string]string{"exec": "b", "fallback": "best"}, "there is no policy"},
		{map[string]string{"exec": "b", "fallback": "hpf-global"}, "all devices at once"},
		{map[string]string{"exec": "b", "turn": "1ms"}, "it has: socket, exec, deadline, fallback"},
	} {
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: "external", Params: tt.params}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want an error with %q", tt.params, err, tt.want)
		}
	}
	if p := d.Policy(); p.Name != "giveway" {
		t.Errorf("after refused orders: got policy %s, want giveway", p.Name)
	}
}

// TestPolicyOfOneDevice: a policy can be put in force on one device, by ID or index, and
// is reported as such. A policy of all devices replaces it.
func TestPolicyOfOneDevice(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(newShim(), b)
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	for _, device := range []string{"fake0", "0"} {
		got, err := d.SetPolicy(ourselves, api.Policy{Name: "wfq", Device: device})
		if err != nil || got.Name != "wfq" || got.Device != "fake0" {
			t.Errorf("wfq on %s: got %+v, %v, want wfq on fake0", device, got, err)
		}
	}
	if got := d.Policy(); got.Name != "giveway" || len(got.Devices) != 1 || got.Devices[0].Name != "wfq" {
		t.Errorf("got %+v, want giveway, and wfq on fake0", got)
	}
	d.mu.Lock()
	if s := d.processes[p.PID].Settings(); !s.TakesTurns {
		t.Error("under wfq a standard process takes no turns")
	}
	d.mu.Unlock()
	for _, bad := range []struct{ name, device, want string }{
		{"wfq", "1", "there is no device"},
		{"wfq", "-1", "there is no device"},
		{"hpf-global", "fake0", "all devices together"},
		{"nosuch", "fake0", "there is no policy"},
	} {
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: bad.name, Device: bad.device}); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s on %s: got %v, want an error with %q", bad.name, bad.device, err, bad.want)
		}
	}
	if got, err := d.SetPolicy(ourselves, api.Policy{Name: "rr"}); err != nil || got.Name != "rr" || got.Device != "" || got.Devices != nil ||
		len(got.Replaced) != 1 || got.Replaced[0].Name != "wfq" || got.Replaced[0].Device != "fake0" {
		t.Errorf("rr on all devices: got %+v, %v", got, err)
	}
}

// TestPoliciesChosenAtOnce puts policies in force from many goroutines: there is a
// connection to a policy process if and only if the policy in force is external.
func TestPoliciesChosenAtOnce(t *testing.T) {
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	defer runDaemon(t, d)()
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	go func() { // so that the queue of connections does not fill up
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	choices := []api.Policy{{Name: "external", Params: map[string]string{"socket": silent.Addr().String()}}, {Name: "rr"}}
	for round := range 100 {
		var ended sync.WaitGroup
		for _, p := range slices.Repeat(choices, 8) {
			ended.Go(func() {
				if _, err := d.SetPolicy(ourselves, p); err != nil {
					t.Error(err)
				}
			})
		}
		ended.Wait()
		connections := 0
		d.events.inLoop(func() { connections = len(d.external) })
		if name := d.Policy().Name; (name == "external") != (connections == 1) {
			t.Fatalf("round %d: policy %s is in force, got %d connections", round, name, connections)
		}
	}
}

// TestOrderForAllDevicesEndsPendingPolicies: a device had a policy by order before the daemon restarted.
// An order for all devices, or a restore, that comes before the device is found applies to it too.
func TestOrderForAllDevicesEndsPendingPolicies(t *testing.T) {
	for _, c := range []struct {
		name, want string
		order      func(*Daemon) error
	}{
		{"restore", "native", func(d *Daemon) error { return d.Restore(ourselves) }},
		{"policy", "wfq", func(d *Daemon) error {
			_, err := d.SetPolicy(ourselves, api.Policy{Name: "wfq"})
			return err
		}},
		{"none", "", func(*Daemon) error { return nil }},
	} {
		d := newTestDaemon(newFakeBackend(journalDir(t)))
		stop := runDaemon(t, d)
		d.takeOverPolicy("late", keptPolicy{InForce: api.Policy{Name: "rr", Device: "late"}})
		if err := c.order(d); err != nil {
			t.Fatal(err)
		}
		d.DeviceFound(lateDevice{})
		own := func() string {
			for _, p := range d.Policy().Devices {
				return p.Name
			}
			return ""
		}
		if c.name == "none" {
			eventually(t, "the device has its policy again", func() bool { return own() == "rr" })
		} else if time.Sleep(50 * time.Millisecond); own() != "" || d.Policy().Name != c.want {
			t.Errorf("%s: got %s and %q on the device, want %s and none", c.name, d.Policy().Name, own(), c.want)
		}
		stop()
	}
}

// lateDevice is a device that is found late.
type lateDevice struct{}

func (lateDevice) Info() hal.Info {
	return hal.Info{Device: sched.Device{ID: "late"}, Index: 1}
}
