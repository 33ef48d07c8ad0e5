package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/server"
)

// daemonNode is a node with a few processes.
type daemonNode struct {
	mu       sync.Mutex
	none     bool
	more     []api.Process // besides processes
	changes  []string
	runs     map[int]attr.Values
	begun    int
	restored int
	refuses  error // the answer to a run
	started  api.RunStarted
	record   *record.Record // nil: one that keeps nothing
	inputs   [][]byte       // parts of the recording of inputs

	recording chan struct{} // closed when that begins; may be nil
}

// from returns attributes that one source gave.
func from(source attr.Source, attrs string) attr.Resolved {
	var l attr.Layers
	l[source] = attr.Must(attrs)
	return attr.Resolve(&l)
}

var processes = []api.Process{
	{
		PID: 812, Command: "python serve.py --port 80", User: "alice", UID: 1000, Attrs: from(attr.FromRun, "class=online slo=10ms bound=16"),
		Queues: []api.Queue{{
			ID: 1, Device: "GPU-a", State: "running", Can: []string{"interrupt", "slice"},
			VendorSlice: 2 * time.Millisecond, Served: 93 * time.Second, Measured: true, MayRun: true, Reason: "online", Ready: true,
		}},
		Requests: &api.Requests{Count: 300, P50: 2100 * time.Microsecond, P99: 9 * time.Millisecond},
	},
	{
		PID: 4711, User: "bob", UID: 1001, Attrs: from(attr.FromSet, "class=batch weight=2"),
		Queues: []api.Queue{
			{ID: 3, Device: "GPU-b", Index: 1, State: "stopped", Can: []string{"interrupt"}, Slice: 200 * time.Microsecond, Served: 4 * time.Second},
			{ID: 2, Device: "GPU-a", State: "stopped", Can: []string{"interrupt", "slice"}, Slice: 200 * time.Microsecond, Served: 2 * time.Hour, OnFloor: true, Reason: "other turn"},
			{ID: 4, Device: "GPU-b", Index: 1, State: "running", Can: []string{"slice"}, Slice: time.Millisecond, Served: 500 * time.Millisecond, Measured: true},
		},
	},
	{
		PID: 4800, Command: "evil \x1b[2J\n" + strings.Repeat("x", 100), User: "alice", UID: 1000, Attrs: from(attr.FromRule, "class=idle paused=true slo=5ms"),
		Ignored: []api.Ignored{{Name: "class", Mark: "ignored by rr"}, {Name: "slo", Mark: "ignored by rr"}},
		Queues:  []api.Queue{{ID: 5, Device: "GPU-a", State: "stopped", Shared: "mps"}},
	},
	{
		PID: 4900, Command: "clinfo", User: "alice", UID: 1000, Attrs: from(attr.FromHint, "class=batch"),
		Shim:   &api.Shim{Runtime: "opencl"},
		Queues: []api.Queue{{ID: 6, Device: "opencl", Index: -1, State: "running", Can: []string{"hold", "bound"}}},
	},
	{PID: 5000, Command: "nvidia-smi", User: "root"},
	{
		PID: 4600, Command: "python train.py", User: "bob", UID: 1001, Attrs: from(attr.FromRun, "class=batch pool=on"), Shim: &api.Shim{Runtime: "cuda"},
		Queues: []api.Queue{}, Member: &api.Member{Server: 5100, Pool: "night", Served: 40 * time.Second},
	},
	{
		PID: 4601, Command: "python other.py", User: "bob", UID: 1001, Attrs: from(attr.FromRun, "class=batch pool=on"),
		Ignored: []api.Ignored{{Name: "class", Mark: "server exited"}},
		Queues:  []api.Queue{}, Member: &api.Member{Server: 5099, Pool: "night", Lost: true},
	},
	{
		PID: 5100, Command: "nvidia-cuda-mps-server", User: "bob", UID: 1001, Attrs: from(attr.FromBackend, "class=batch weight=2"),
		Queues: []api.Queue{{ID: 9, Device: "GPU-a", State: "running", Can: []string{"slice"}, Slice: 200 * time.Microsecond, Served: time.Minute, Shared: "mps", Pool: "night"}},
	},
}

// Record returns by default a record that keeps nothing: the orders of these tests are at
// another time in each run, and the outputs are compared as a whole.
func (n *daemonNode) Record() *record.Record { return cmp.Or(n.record, record.New(time.Now(), 1)) }

func (n *daemonNode) Processes() []api.Process {
	if n.none {
		return nil
	}
	return append(slices.Clone(processes), n.more...)
}

func (n *daemonNode) Process(pid int) (p api.Process, ok bool) {
	all := n.Processes()
	if i := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid }); i >= 0 {
		return all[i], true
	}
	return p, false
}

func (n *daemonNode) Change(by server.Caller, pid int, c api.Change) (api.Process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, _ := json.Marshal(c)
	n.changes = append(n.changes, fmt.Sprintf("%d %s", pid, b))
	for _, p := range append(slices.Clone(processes), n.more...) {
		if p.PID != pid {
			continue
		}
		l := attr.Layers{attr.FromRun: p.Attrs.Given(), attr.FromSet: c.Values}
		p.Attrs = attr.Resolve(&l)
		if c.Has(attr.Predict) {
			p.Ignored = append(p.Ignored, api.Ignored{Name: "predict", Mark: "ignored without the shim", Reason: "the process has no shim"})
		}
		return p, nil
	}
	return api.Process{}, server.NotFound("process %d uses no GPU", pid)
}

func (n *daemonNode) Hint(by server.Caller, pid int, h api.Hint) (api.Process, error) {
	p, err := n.Change(by, pid, api.Change{})
	b, _ := json.Marshal(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes[len(n.changes)-1] = fmt.Sprintf("hint %d %s", pid, b)
	return p, err
}

func (n *daemonNode) Policy() api.Policy {
	return api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms", "slice": "200us"}, Overruled: "it named a queue that is not there"}
}
func (n *daemonNode) SetPolicy(_ server.Caller, p api.Policy) (api.Policy, error) { return p, nil }
func (n *daemonNode) Restore(server.Caller) error                                 { n.restored++; return nil }

func (n *daemonNode) Delays() api.Delays {
	return api.Delays{Delays: []api.Delay{
		{Device: "GPU-a", PID: 4711, Class: "batch", Holder: api.Holder{Kind: "process", PID: 812}, Last10: 1200 * time.Millisecond},
		{Device: "GPU-a", PID: 812, Class: "online", Holder: api.Holder{Kind: "switch"}, Last10: 90 * time.Millisecond},
	}}
}

func (n *daemonNode) Pressure() api.Pressure { return api.Pressure{} }

func (n *daemonNode) BeginInputs() ([]byte, error) {
	if n.recording != nil {
		close(n.recording)
	}
	return n.NextInputs(false)
}

func (n *daemonNode) NextInputs(bool) (part []byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.inputs) > 0 {
		part, n.inputs = n.inputs[0], n.inputs[1:]
	}
	return part, nil
}

func (n *daemonNode) Tally() *metrics.Tally { return metrics.NewTally(metrics.Labels{}) }

func (n *daemonNode) Status() api.Status {
	return api.Status{
		Version: "v1", PID: 99, Uptime: 3 * time.Hour, Policy: api.Policy{Name: "giveway"},
		Devices: []api.Device{
			{ID: "GPU-a", Model: "H200", Backend: "nvidia", Trace: true, Switching: &api.Switching{Lost: time.Minute, Switches: 1000, Share: 0.049, Rate: 780}},
			{ID: "GPU-b", Index: 1, Model: "H200", Backend: "nvidia", Trace: true, Switching: &api.Switching{Share: 0.009, Rate: 90}},
		},
		Checks: []api.Check{
			{Name: "driver", OK: true, Detail: "version 580"},
			{Name: "bpf", Detail: "not permitted", Fix: "run the daemon as root"},
		},
	}
}

func (n *daemonNode) BeginRun(by server.Caller, r api.Run) (api.RunStarted, func(), error) {
	pid := by.PID
	if n.refuses != nil {
		return n.started, nil, n.refuses
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs[pid] = r.Values
	n.begun++
	return n.started, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.runs, pid)
	}, nil
}

// startDaemon serves a node where the command line looks for a daemon.
func startDaemon(t *testing.T, n *daemonNode) (stop func()) {
	t.Helper()
	if n.runs == nil {
		n.runs = map[int]attr.Values{}
	}
	socket := os.Getenv("GIVEWAY_SOCKET")
	if !strings.HasPrefix(socket, os.TempDir()) || !strings.HasSuffix(socket, "daemon.sock") {
		socket = filepath.Join(t.TempDir(), "daemon.sock")
		t.Setenv("GIVEWAY_SOCKET", socket)
	}
	s := server.New(n, server.Config{Socket: socket})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestControl compares the output of commands that talk to a daemon with
// testdata/control.txt.
func TestControl(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	startDaemon(t, &daemonNode{})
	const golden = "testdata/control.txt"
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for i, text := range strings.Split("\n"+string(data), "\n$ giveway ") {
		if i == 0 {
			out = strings.TrimPrefix(text, "\n")
			continue
		}
		line, want, _ := strings.Cut(text, "\n")
		stdout, stderr, code := call(strings.Fields(line)...)
		got := stdout + stderr
		if code != 0 {
			got += fmt.Sprintf("(exit %d)\n", code)
		}
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !rewriting() {
			t.Errorf("giveway %s: got\n%swant\n%s", line, got, want)
		}
		out += fmt.Sprintf("\n$ giveway %s\n%s", line, got)
	}
	if rewriting() {
		if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func rewriting() bool {
	f := flag.Lookup("rewrite")
	return f != nil && f.Value.String() == "true"
}

func TestControlJSON(t *testing.T) {
	n := &daemonNode{none: true}
	startDaemon(t, n)
	if out, _, _ := call("ps"); out != noProcesses {
		t.Errorf("empty ps: got %s", out)
	}
	if out, _, _ := call("ps", "--json"); !strings.Contains(out, `"version": 1`) || !strings.Contains(out, `"processes": []`) {
		t.Errorf("empty ps --json: got %s", out)
	}
	for _, c := range []struct {
		args string
		v    any
		code int
	}{
		{"policy --json", new(api.Policy), exitOK},
		{"doctor --json", new(api.Status), exitFailure},
		{"restore --json", new(restoredJSON), exitOK},
	} {
		out, errs, code := call(strings.Fields(c.args)...)
		if err := json.Unmarshal([]byte(out), c.v); err != nil || code != c.code {
			t.Errorf("%s: got %v, exit %d: %s%s", c.args, err, code, out, errs)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	for args, want := range map[string]string{
		"set 812 --class batch --weight 3 --tree --json": `812 {"class":"batch","weight":3,"tree":true}`,
		"set 812 --priority=-2 --deadline 20ms --json":   `812 {"priority":-2,"deadline_ns":20000000}`,
		"set 812 --share 25% --focus --nice -5 --json":   `812 {"nice":-5,"share_percent":25,"focus":true}`,
		"set 812 --focus=false --json":                   `812 {"focus":false}`,
		"pause 812 --json":                               `812 {"paused":true}`,
		"resume 812 --tree --json":                       `812 {"paused":false,"tree":true}`,
	} {
		n.changes = nil
		var p api.Process
		out, errs, code := call(strings.Fields(args)...)
		if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitOK || p.PID != 812 {
			t.Errorf("%s: got %v, exit %d: %s%s", args, err, code, out, errs)
		}
		if len(n.changes) != 1 || n.changes[0] != want {
			t.Errorf("%s: the daemon got %q", args, n.changes)
		}
	}
}

// TestErrorsInJSON: with --json every command reports an error as one object with the key error,
// also one of the command line.
func TestErrorsInJSON(t *testing.T) {
	t.Setenv("GIVEWAY_SOCKET", "/none.sock")
	for args, code := range map[string]int{
		"ps --json": exitFailure, "log --json": exitFailure, "explain 5 --json": exitFailure, "set 5 --class batch --json": exitFailure,
		"pause 5 --json": exitFailure, "policy --json": exitFailure, "policy rr --json": exitFailure, "hint 5 --slo 1ms --json": exitFailure,
		"restore --json": exitFailure, "doctor --json": exitFailure,
		"set --json": exitUsage, "set 5 --class bach --json": exitUsage, "ps x --json": exitUsage, "set 5 --json --nosuch": exitUsage,
	} {
		_, errs, got := call(strings.Fields(args)...)
		var message map[string]string
		if err := json.Unmarshal([]byte(errs), &message); err != nil || got != code || len(message) != 1 || message["error"] == "" {
			t.Errorf("%s: got exit %d, %v: %s", args, got, err, errs)
		}
	}
	if _, errs, _ := call("run", "--class", "bach", "--", "ls", "--json"); !strings.HasPrefix(errs, "giveway: ") {
		t.Errorf("--json of a program: got %s, want text", errs)
	}
}

// TestPolicyOfDevice: the policy of one device is its own, or that of all.
func TestPolicyOfDevice(t *testing.T) {
	st := api.Status{
		Devices: []api.Device{{ID: "GPU-a", Index: 0}, {ID: "GPU-b", Index: 1}, {ID: "cpu", Index: -1}},
		Policy:  api.Policy{Name: "slo", Devices: []api.Policy{{Name: "rr", Device: "GPU-b"}}},
	}
	for name, want := range map[string]string{"0": "slo on GPU-a\n", "GPU-b": "rr on GPU-b\n", "1": "rr on GPU-b\n", "cpu": "slo on cpu\n", "2": "", "-1": ""} {
		var b strings.Builder
		p, err := policyOfDevice(st, name)
		if err == nil {
			err = printPolicy(&b, p)
		}
		if b.String() != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", name, b.String(), err, want)
		}
	}
	var b strings.Builder
	replaced := api.Policy{Name: "wfq", Replaced: []api.Policy{{Name: "rr", Device: "GPU-b"}}}
	if err := printPolicy(&b, replaced); err != nil || b.String() != "wfq\nAlso on GPU-b, which had rr\n" {
		t.Errorf("a policy for all devices: got %q, %v", b.String(), err)
	}
}

func TestControlCompletion(t *testing.T) {
	startDaemon(t, &daemonNode{})
	for args, want := range map[string]string{
		"__complete set \"\"":          "812\tonline python serve.py",
		"__complete set 812 --class b": "batch\tgives way to online",
		"__complete policy w":          "wfq\tdevice time in proportion",
		"__complete run --class \"\"":  "online\tlatency-critical",
	} {
		fields := strings.Fields(args)
		for i := range fields {
			fields[i] = strings.Trim(fields[i], `"`)
		}
		out, _, code := call(fields...)
		if code != exitOK || os.Getuid() == 0 && !strings.Contains(out, want) {
			t.Errorf("%s: got exit %d, no %q in\n%s", args, code, want, out)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	t.Setenv("GIVEWAY_SOCKET", "/none.sock")
	const none = "giveway: no daemon is running at /none.sock: start one with 'giveway daemon --socket /none.sock'\n"
	for _, args := range []string{"ps", "ps --watch", "top", "explain 5", "log", "log --follow", "set 5 --class batch", "pause 5", "resume 5", "policy", "policy rr", "restore"} {
		out, errs, code := call(strings.Fields(args)...)
		if code != exitFailure || out != "" || errs != none {
			t.Errorf("%s: got exit %d\n%s%s", args, code, out, errs)
		}
	}
	defer func() { LocalChecks, LocalRestore = nil, nil }()
	LocalChecks = func() []api.Check {
		return []api.Check{{Name: "driver", OK: true, Detail: "version 580"}}
	}
	LocalRestore = func(context.Context) (hal.Restored, error) { return hal.Restored{Queues: 3, Slices: 2}, nil }
	out, errs, code := call("doctor")
	want := `no  daemon  none is running at /none.sock
            to do: giveway daemon --socket /none.sock
ok  driver  version 580
`
	if out != want || errs != "giveway: 1 of 2 checks failed\n" || code != exitFailure {
		t.Errorf("doctor: got exit %d\n%s%s", code, out, errs)
	}
	if out, _, code := call("restore", "--all"); code != exitOK || !strings.HasPrefix(out, "3 queues were found and started; 2 of them had") {
		t.Errorf("restore --all: got exit %d, %s", code, out)
	}
	var printed map[string]any
	out, errs, code = call("restore", "--all", "--json")
	if err := json.Unmarshal([]byte(out), &printed); err != nil || code != exitOK || errs != "" {
		t.Errorf("restore --all --json: got exit %d, %v, %s%s", code, err, out, errs)
	}
	if fmt.Sprint(printed) != "map[daemon:false journal:false queues_started:3 slices_restored:2]" {
		t.Errorf("restore --all --json: got %v", printed)
	}
	LocalRestore = func(context.Context) (hal.Restored, error) {
		return hal.Restored{Queues: 3, Slices: 2}, errors.New("process 7: it hangs")
	}
	for args, want := range map[string]string{
		"restore --all": "giveway: process 7: it hangs\n", "restore --all --json": `{"error":"process 7: it hangs"}` + "\n",
	} {
		if out, errs, code := call(strings.Fields(args)...); code != exitFailure || out != "" || errs != want {
			t.Errorf("%s that fails: got exit %d, %s%s", args, code, out, errs)
		}
	}
}

// TestRestoreLeft: without a daemon, restore undoes what the journals list; --left does so
// without asking a daemon.
func TestRestoreLeft(t *testing.T) {
	defer func() { LeftRestore = nil }()
	t.Setenv("GIVEWAY_SOCKET", "/none.sock")
	for _, c := range []struct {
		queues int
		found  bool
		err    error
		want   string
		code   int
	}{
		{2, true, nil, "2 queues were left changed; they are as they were found\n", exitOK},
		{0, false, nil, "There is no journal, so", exitOK},
		{1, true, errors.New("queue 3 of process 7: it hangs"), "giveway: queue 3 of process 7: it hangs\n", exitFailure},
	} {
		LeftRestore = func(sockets []string, _ *slog.Logger) (int, bool, error) {
			if fmt.Sprint(sockets) != "[/none.sock]" {
				t.Errorf("got sockets %v, want /none.sock", sockets)
			}
			return c.queues, c.found, c.err
		}
		for _, args := range []string{"restore", "restore --left"} {
			if out, errs, code := call(strings.Fields(args)...); code != c.code || !strings.HasPrefix(out+errs, c.want) {
				t.Errorf("%s: got exit %d, %s%s; want exit %d, %s", args, code, out, errs, c.code, c.want)
			}
		}
	}
	startDaemon(t, &daemonNode{})
	asked := false
	LeftRestore = func([]string, *slog.Logger) (int, bool, error) { asked = true; return 0, true, nil }
	if _, _, code := call("restore"); code != exitOK || asked {
		t.Errorf("restore with a daemon: got exit %d, journal read %v; want the daemon to do it", code, asked)
	}
}

// TestRestoreNamesEarlierDamage: a journal that an earlier call kept as damaged is not forgotten.
func TestRestoreNamesEarlierDamage(t *testing.T) {
	defer func() { LeftRestore = nil }()
	LeftRestore = func([]string, *slog.Logger) (int, bool, error) { return 0, true, nil }
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	damaged := journal.DamagedPath(journal.Path(socket))
	if _, errs, _ := call("restore"); errs != "" {
		t.Errorf("no damaged journal: got %s", errs)
	}
	if err := os.WriteFile(damaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := call("restore"); code != exitOK || !strings.Contains(errs, damaged+" is a damaged journal") {
		t.Errorf("got exit %d, %s", code, errs)
	}
}

// TestRestoreBesideDaemon: --all and --left are refused before anything is changed.
func TestRestoreBesideDaemon(t *testing.T) {
	n := &daemonNode{}
	startDaemon(t, n)
	defer func() { LeftRestore, LocalRestore = nil, nil }()
	LeftRestore = func([]string, *slog.Logger) (int, bool, error) { t.Error("a journal was read"); return 0, true, nil }
	LocalRestore = func(context.Context) (hal.Restored, error) {
		t.Error("queues were restored")
		return hal.Restored{}, nil
	}
	for args, want := range map[string]string{
		"restore --all":  "so nothing was changed. 'giveway restore' lets it put everything back",
		"restore --left": "'giveway restore' lets it put everything back",
	} {
		_, errs, code := call(strings.Fields(args)...)
		if code != exitFailure || !strings.Contains(errs, want) || !strings.Contains(errs, "a daemon is running at") {
			t.Errorf("%s: got exit %d, %s; want %q", args, code, errs, want)
		}
	}
	if n.restored != 0 {
		t.Errorf("the daemon restored %d times, want 0", n.restored)
	}
	out, _, code := call("restore", "--json")
	var printed restoredJSON
	if err := json.Unmarshal([]byte(out), &printed); err != nil || code != exitOK || printed != (restoredJSON{Daemon: true}) || n.restored != 1 {
		t.Errorf("restore --json: got exit %d, %v, %s, %d restores", code, err, out, n.restored)
	}
}

func TestControlUsage(t *testing.T) {
	for args, want := range map[string]string{
		"set":                                        "set takes one pid, as 'giveway ps' lists them; got 0",
		"set five --class batch":                     `"five" is not a pid; 'giveway ps' lists them`,
		"set 5":                                      "set needs an attribute, for example --class batch",
		"set 5 --class bach":                         "class bach is not one of online, standard, batch, idle",
		"set 5 --weight 0":                           "weight 0 is not a whole number from 1 to 10000",
		"set 5 --bound abc":                          "bound abc is not a whole number from 0 (no bound) to 65536",
		"set 5 --bound=":                             `bound "" is not a whole number from 0 (no bound) to 65536`,
		"set 5 --weight 0x":                          "weight 0x is not a whole number from 1 to 10000",
		"set 5 --priority 3000000000":                "priority 3000000000 is not a whole number from -2147483648 to 2147483647",
		"set 5 --slo 5":                              "slo 5 is not a time from 0 (none) to 1h, such as 20ms",
		"run --bound -1 -- true":                     "bound -1 is not a whole number from 0 (no bound) to 65536",
		"run --bound-batch -1 -- true":               "bound-batch -1 is not a whole number from 0 (adaptive) to 65536",
		"hint 5 --begin x":                           "begin x is not a whole number",
		"hint 5 --idempotent=maybe":                  "idempotent maybe is not true or false",
		"hint --self 3 --expect 1ms":                 "either a PID or --self, not both",
		"set 5 --expect 5ms":                         "unknown flag: --expect",
		"set 5 --share 120%":                         "share 120% is not a whole percentage from 0% (an equal part of what is left) to 100%, such as 25%",
		"set 5 --bound 4 --bound-batch 8":            "bound-batch 8 is more than bound 4",
		"run --paused -- true":                       "unknown flag: --paused",
		"hint 5":                                     "hint needs an attribute, for example --expect 20ms, or --begin or --end",
		"pause -- -5":                                `"-5" is not a pid`,
		"policy rr wfq":                              "policy takes one policy, such as giveway:turn=20ms; there are 2 words",
		"policy qqqqqqq":                             `there is no policy "qqqqqqq"; there are: `,
		"policy rr:quantum=5":                        "policy rr: parameter quantum: ",
		"run":                                        "run needs a command, for example: giveway run --class batch -- python train.py",
		"run -- true":                                "run needs an attribute, for example --class batch",
		"run --class bach -- true":                   "class bach is not one of",
		"run --class batch --wait true":              "unknown flag: --wait",
		"run --class batch --predict -- true":        "predict is for class online only, not for batch: choose that class, or leave predict out",
		"set 5 --class idle --predict":               "predict is for class online only, not for idle",
		"run --slo 5ms --class batch --predict true": "predict is for class online only, not for batch",
		"run --class batch --no-shim --bound 4 true": "--bound needs the shim: leave out --no-shim, or --bound",
		"run --class batch --no-shim --bound-batch 4 true":  "--bound-batch needs the shim: leave out --no-shim, or --bound-batch",
		"set 5 --class batch --late-entry on":               "late-entry is for class online only, not for batch",
		"set 5 --late-entry maybe":                          "late-entry maybe is not one of off, auto, on",
		"run --class online --no-shim --late-entry on true": "--late-entry needs the shim: leave out --no-shim, or --late-entry",
		"run --class online --no-shim --predict true":       "--predict needs the shim: leave out --no-shim, or --predict",
		"ps --watch 1s":       "ps takes no arguments; write --watch=1s",
		"ps me":               `ps takes no arguments; got "me"`,
		"daemon --speed 2":    "--speed is for a simulation: name its scenario with --sim",
		"daemon --speed fast": "speed fast is not a number",
	} {
		out, errs, code := call(strings.Fields(args)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errs, "giveway: "+want) || !strings.Contains(errs, "\nSee ") {
			t.Errorf("%s: got exit %d\n%s%swant %s", args, code, out, errs, want)
		}
	}
}

// TestValidRuns: flags that look like the mistakes above and are valid.
func TestValidRuns(t *testing.T) {
	for _, args := range []string{
		"--class online --predict", "--slo 5ms --predict", "--predict", "--class batch --predict=false", "--weight 2",
		"--class batch --no-shim --predict=false", "--class batch --late-entry off", "--class online --no-shim --late-entry off",
	} {
		words := append(append([]string{"run"}, strings.Fields(args)...), "--", "/none/x")
		if _, errs, code := call(words...); code != exitNotFound {
			t.Errorf("%s: got exit %d: %s", args, code, errs)
		}
	}
}

func TestDaemonCommand(t *testing.T) {
	if _, errs, code := call("daemon"); code != exitFailure || errs != "giveway: this build has no daemon\n" {
		t.Errorf("without one: got exit %d, %s", code, errs)
	}
	defer func() { RunDaemon = nil }()
	var got daemon.Options
	RunDaemon = func(_ context.Context, o daemon.Options) error {
		got = o
		o.Log.Info("hello")
		return errors.New("it ends")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	_, errs, code := call("daemon", "--user", "--socket", "/x.sock", "--json")
	if code != exitFailure || !strings.Contains(errs, `"msg":"hello"`) || !strings.HasSuffix(errs, `{"error":"it ends"}`+"\n") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if got.StartedInPool == nil || !got.StartedInPool([]string{"GIVEWAY_POOL=a:/p"}) || got.StartedInPool(nil) {
		t.Error("the daemon cannot tell which processes are to be in a pool")
	}
	if !got.User || got.Socket != "/x.sock" || got.File != "" || got.Default != "/run/user/7/giveway.sock" {
		t.Errorf("%+v", got)
	}
	dir := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "giveway")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "giveway.yaml"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	call("daemon", "--user")
	if got.File != filepath.Join(dir, "giveway.yaml") || got.Socket != "" {
		t.Errorf("%+v", got)
	}
	call("daemon", "--config", "/y.yaml")
	if got.File != "/y.yaml" {
		t.Errorf("%+v", got)
	}
}

// TestFlagsOfEveryAttribute: run, set and hint have a flag for every attribute that can
// be set so, and no other; the flag sends what the row says.
func TestFlagsOfEveryAttribute(t *testing.T) {
	n := &daemonNode{more: []api.Process{{PID: 7, UID: uint32(os.Getuid())}}}
	startDaemon(t, n)
	for _, id := range attr.IDs(0) {
		r := id.Row()
		flag := "--" + r.Name + "=" + r.Format(r.Max)
		want, _ := json.Marshal(id.Of(r.Max))
		for _, c := range []struct {
			way  attr.Way
			args []string
			sent string
		}{
			{attr.BySet, []string{"set", "7", flag}, "7 " + string(want)},
			{attr.ByHint, []string{"hint", "7", flag}, "hint 7 " + string(want)},
		} {
			n.changes = nil
			_, errs, code := call(c.args...)
			if r.Ways&c.way == 0 {
				if code != exitUsage || !strings.Contains(errs, "unknown flag") {
					t.Errorf("%q: got exit %d, %s; want an unknown flag", c.args, code, errs)
				}
				continue
			}
			if code != exitOK || fmt.Sprint(n.changes) != "["+c.sent+"]" {
				t.Errorf("%q: exit %d, %s; the daemon got %q, want %q", c.args, code, errs, n.changes, c.sent)
			}
		}
		if _, errs, code := call("run", flag, "--", "/none/x"); (code == exitNotFound) != (r.Ways&attr.ByRun != 0) {
			t.Errorf("run %s: got exit %d, %s", flag, code, errs)
		}
	}
}

// TestProcessText: a process is described with every attribute that differs from its default.
func TestProcessText(t *testing.T) {
	p := api.Process{
		PID: 7, Command: "serve", Attrs: from(attr.FromSet, "class=online weight=2 priority=-3 nice=5 share=25% slo=10ms deadline=20ms laxity=1ms"+
			" work=3ms expect=1234567ns bound=5 bound-batch=3 predict=true late-entry=off idempotent=true focus=true paused=true"),
		Ignored: []api.Ignored{{Name: "deadline", Mark: "ignored by slo"}, {Name: "predict", Mark: "ignored by opencl"}},
	}
	const want = "7 (serve): online, weight 2, priority -3, nice 5, share 25%, slo 10ms, deadline 20ms (ignored by slo), laxity 1ms, work 3ms, expect 1.23ms," +
		" bound 5, bound-batch 3, predict (ignored by opencl), late-entry off, idempotent, focus, paused"
	if got := processText(&p); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := processText(&api.Process{PID: 7, Attrs: from(attr.FromSet, "class=batch weight=1 slo=0")}), "7: batch"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestDoctorBesideAHangingDaemon: the daemon does not answer. doctor says so, and checks what it can
// without it.
func TestDoctorBesideAHangingDaemon(t *testing.T) {
	doctorTime = 100 * time.Millisecond
	defer func() { doctorTime = 10 * time.Second }()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path) // accepts nothing; the kernel completes connections
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("GIVEWAY_SOCKET", path)
	LocalChecks = func() []api.Check { return []api.Check{{Name: "local", OK: true}} }
	defer func() { LocalChecks = nil }()
	out, errs, code := call("doctor")
	if code != exitFailure || !strings.Contains(out, "the daemon does not answer: nothing came from "+path) || !strings.Contains(out, "ok  local") || !strings.Contains(errs, "1 of 2 checks failed") {
		t.Errorf("got exit %d\n%s%s", code, out, errs)
	}
}

// TestDoctorReportsRefusedConfig: without a daemon, doctor reads the configuration.
func TestDoctorReportsRefusedConfig(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("GIVEWAY_SOCKET", "/none.sock")
	file := filepath.Join(dir, "giveway", "giveway.yaml")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("polcy: rr\neyes: true\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	st := localStatus(api.Check{}, true)
	i := slices.IndexFunc(st.Checks, func(c api.Check) bool { return c.Name == "configuration" })
	if i < 0 || st.Checks[i].OK || !strings.Contains(st.Checks[i].Detail, "polcy") || strings.Contains(st.Checks[i].Detail, "\n") {
		t.Fatalf("a refused file: got %+v", st.Checks)
	}
	if err := os.WriteFile(file, []byte("policy: rr\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if st = localStatus(api.Check{}, true); !st.Checks[i].OK {
		t.Errorf("a file that is right: got %+v", st.Checks[i])
	}
}
