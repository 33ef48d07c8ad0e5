package metrics

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/sched"
)

var status = api.Status{
	Version: "1.2", PID: 7, Uptime: 90*time.Second + time.Millisecond,
	Policy:  api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}, Overruled: "stalled"},
	Devices: []api.Device{{ID: "GPU-a", Model: "NVIDIA H200", Backend: "nvidia", Trace: true, Ledger: &api.Ledger{Held: time.Minute, Switching: 1500 * time.Millisecond, Idle: 28 * time.Second, Unknown: time.Millisecond, Switches: 900, Preempted: 40, Visits: 90}}, {ID: "GPU-b", Index: 1, Model: "NVIDIA H200", Backend: "nvidia", Slots: &api.Slots{Total: 24, Reserved: 3}}},
	Checks:  []api.Check{{Name: "secret check"}, {Name: "guardian", OK: true}, {Name: "configuration"}}, KernelLogLines: 42, Goroutines: 9,
}

func attrs(text string) attr.Resolved {
	return attr.Resolve(&attr.Layers{attr.FromSet: attr.Must(text)})
}

var processes = []api.Process{
	{
		PID: 812, Command: "python --password=hunter2", User: "alice", UID: 1000, Attrs: attrs("class=online"), Container: "c0ffee", Pod: "web-0",
		Queues:   []api.Queue{{ID: 1, Device: "GPU-a", State: "running", Served: 93*time.Second + 250*time.Millisecond, Measured: true}},
		Shim:     &api.Shim{Runtime: "cuda", Launched: 9, Completed: 8, Holds: 2, HeldFor: time.Second, Overruns: 1, Parked: 5, Hits: 4, ParkedFor: time.Millisecond, Saved: time.Microsecond, LateRequests: 6, LateEarly: 1, LateFor: 3 * time.Millisecond, LateCompared: &api.LateCompared{Pairs: 64, Ratio: 1.01, Low: 0.99, High: 1.03, GivenUp: 2}},
		Requests: &api.Requests{Count: 7, P50: time.Millisecond, P99: 2 * time.Millisecond},
	},
	{
		PID: 4711, User: "bob", UID: 1001, Attrs: attrs("class=batch paused=true"),
		Queues: []api.Queue{
			{ID: 2, Device: "GPU-a", State: "stopped", Served: time.Nanosecond, OnFloor: true},
			{ID: 3, Device: "GPU-a", State: "stopping"}, // the same process on the same device
		},
	},
	{PID: 5000, User: "root", Attrs: attrs("class=batch")},
}

// counted returns a Tally in which everything was counted.
func counted(l Labels) *Tally {
	t := NewTally(l)
	const second = sched.Time(time.Second)
	alice := Process{PID: 812, UID: 1000, User: "alice", Container: "c0ffee", Pod: "web-0", Namespace: "prod"}
	bob := Process{PID: 4711, UID: 1001, User: "bob"}
	t.Open(1, "GPU-a", sched.Online, alice)
	t.Open(2, "GPU-a", sched.Batch, bob)
	t.Open(3, "GPU-a", sched.Batch, bob)
	t.Served(second, []sched.Queue{{ID: 1, Served: 93 * time.Second}, {ID: 2, Served: time.Second}, {ID: 3, Served: time.Second}, {ID: 9, Served: time.Hour}})
	t.SetClass(2, sched.Idle)
	t.Served(2*second, []sched.Queue{{ID: 1, Served: 93*time.Second + 250*time.Millisecond}, {ID: 2, Served: 4 * time.Second}})
	t.Used(2*second, "GPU-a", sched.Online, &alice, Use{TakenBack: 3 * time.Second})
	t.Used(2*second, "GPU-a", sched.Batch, &bob, Use{GivenAway: time.Second, Promised: 750 * time.Millisecond, Given: 500 * time.Millisecond})
	t.Used(2*second, "GPU-a", sched.Batch, &bob, Use{GivenAway: 500 * time.Millisecond})
	t.Close(3)
	for _, took := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond, 11 * time.Millisecond, time.Hour} {
		t.Request(2*second, sched.Online, alice, took, 10*time.Millisecond)
	}
	t.Request(2*second, sched.Batch, bob, time.Second, 0)
	t.Waited("GPU-a", 1800*time.Microsecond)
	for i, o := range []sched.Outcome{sched.Done, sched.Refused, sched.Unsupported, sched.Gone} {
		t.Over(Action{Verb: sched.Stop, Level: sched.LevelInterrupt, Outcome: o, Took: 700 * time.Microsecond, Cost: 600 * time.Microsecond, PID: i})
	}
	t.Over(Action{Verb: sched.SetSlice, Outcome: sched.Done, Took: time.Millisecond, Cost: 300 * time.Microsecond})
	t.FloorTurn("GPU-a")
	t.Overruled("GPU-b")
	t.Inverted(second, "GPU-a", true, 100*time.Millisecond, Inversion{812, 4711})
	t.Inverted(2*second, "GPU-a", false, 50*time.Millisecond, Inversion{812, 4711})
	t.GuardianStarted()
	t.ConfigRead(false)
	t.ConfigRead(true)
	return t
}

// node returns a node in which every metric has a sample.
func node(l Labels) *Node {
	return &Node{
		Status: status, Processes: processes, Tally: counted(l), Record: 77, Everything: true,
		Delays: api.Delays{Classes: []api.ClassDelay{{Device: "GPU-a", Class: "online", Holder: "batch", Total: 1500 * time.Millisecond}}},
		Pressure: api.Pressure{Devices: []api.DevicePressure{
			{Device: "GPU-a", Some: api.Stall{Total: 2 * time.Second}, Full: api.Stall{Total: time.Millisecond}},
		}},
	}
}

var allLabels = Labels{PID: true, User: true, Container: true, Pod: true, Namespace: true}

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// TestText compares all metrics with testdata/all.prom, and those without labels of processes
// with the part of it that has none.
func TestText(t *testing.T) {
	got := Text(node(allLabels))
	want := golden(t, "testdata/all.prom", got)
	var none []string
	for l := range strings.Lines(string(want)) {
		if name := strings.FieldsFunc(strings.TrimPrefix(strings.TrimPrefix(l, "# HELP "), "# TYPE "), func(c rune) bool { return c == ' ' || c == '{' })[0]; !ofProcess.MatchString(name) {
			none = append(none, l)
		}
	}
	if got := string(Text(node(Labels{}))); got != strings.Join(none, "") {
		t.Errorf("without labels: got\n%s\nwant\n%s", got, strings.Join(none, ""))
	}
}

// golden compares metrics with those in a file, and returns these. Prometheus' own parser reads
// the files in tools/promcheck.
func golden(t *testing.T, path string, got []byte) []byte {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(got) != string(want) {
		t.Errorf("%v; got\n%s\nrun go test ./internal/metrics -run TestText -rewrite, and read the difference", err, got)
	}
	return want
}

// TestTextHostile compares metrics with names that were chosen to do harm with
// testdata/hostile.prom.
func TestTextHostile(t *testing.T) {
	const name = "a\"} 1\ngiveway_fake 1\n# \\ \x1b[2J\xff"
	n := node(allLabels)
	p := Process{PID: 666, UID: 1002, User: name, Container: strings.Repeat("\"", 64<<10), Pod: strings.Repeat("\xc3", 64<<10)}
	n.Tally.Open(66, "GPU-a", sched.Batch, p)
	n.Tally.Served(0, []sched.Queue{{ID: 66, Served: time.Second}})
	n.Tally.Request(0, sched.Online, p, time.Second, time.Second)
	n.Status.Version, n.Status.Policy.Name = name, name
	golden(t, "testdata/hostile.prom", Text(n))
}

var ofProcess = regexp.MustCompile(`^giveway_(process|queue|shim|processes_left_out|queues_left_out)(_|$)`)

// TestOtherUsers: a reader that may not see everything sees no requests of others, and of the
// series with labels of processes those of its own.
func TestOtherUsers(t *testing.T) {
	n := node(allLabels)
	n.Everything, n.UID, n.Processes = false, 1001, processes[1:]
	text := string(Text(n))
	for _, secret := range []string{"c0ffee", "web-0", "alice", "giveway_request_seconds_count", "giveway_slo_requests_total{", `pid="812"`} {
		if strings.Contains(text, secret) {
			t.Errorf("bob sees %s", secret)
		}
	}
	if want := `giveway_process_device_seconds_total{device="GPU-a",class="batch",pid="4711",user="bob",container="",pod="",namespace=""} 2`; !strings.Contains(text, want+"\n") {
		t.Errorf("bob does not see %s:\n%s", want, text)
	}
}

// TestDocs: docs/METRICS.md lists every metric with its type, and no other.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var written, documented []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(string(Text(node(allLabels))), -1) {
		written = append(written, m[1]+" "+m[2])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(giveway_[a-z0-9_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	if !slices.Equal(written, documented) {
		t.Errorf("the daemon writes %q\ndocs/METRICS.md has %q", written, documented)
	}
}

// line is the format: a name, labels whose values have every backslash, quote and line
// feed escaped, and a number.
var line = regexp.MustCompile(`^(# (HELP|TYPE) giveway_[a-z0-9_]+ .+|giveway_[a-z0-9_]+(\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\})? [0-9.e+-]+)$`)

// TestHostileText: text that a user chose does not become a sample.
func TestHostileText(t *testing.T) {
	for _, name := range []string{
		"a\"} 1\ngiveway_fake 1\n#", `\`, `\n`, "\xff\xfe", "\r\n", "", strings.Repeat("{", 5000), strings.Repeat("\x1b[31m", 16<<10), strings.Repeat("\xc3", 64<<10), `a"b`, "\x00\u2028",
	} {
		n := node(allLabels)
		n.Status.Version, n.Status.Policy.Name = name, name
		n.Status.Devices = []api.Device{{ID: name, Model: name, Backend: name, Ledger: &api.Ledger{}}}
		n.Processes = slices.Clone(processes)
		n.Processes[0].User = name
		n.Processes[0].Queues = []api.Queue{{Device: name, State: name, Served: -1}}
		n.Delays.Classes[0].Device, n.Pressure.Devices[0].Device = name, name
		// Two texts that are the same once they are valid.
		for i, like := range []string{name, name + "\xff", name + "\xfe"} {
			id := sched.QueueID(100 + i)
			p := Process{PID: 1, User: like, Container: like, Pod: like}
			n.Tally.Open(id, sched.DeviceID(name), sched.Batch, p)
			n.Tally.Served(0, []sched.Queue{{ID: id, Served: time.Second}})
			n.Tally.Request(0, sched.Online, p, time.Second, time.Second)
		}
		n.Tally.Waited(sched.DeviceID(name), time.Second)
		text := string(Text(n))
		if limit := 200 << 10; len(text) > limit {
			t.Errorf("%.20q: %d bytes", name, len(text))
		}
		if text != strings.ToValidUTF8(text, "?") {
			t.Errorf("%q: not UTF-8", name)
		}
		seen := map[string]bool{}
		for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			if !line.MatchString(l) || strings.HasPrefix(l, "giveway_fake") {
				t.Errorf("%q: got %s", name, l)
			}
			series := l[:strings.LastIndex(l, " ")]
			if seen[series] && !strings.HasPrefix(l, "#") {
				t.Errorf("%q: the series occurs twice: got %s", name, l)
			}
			seen[series] = true
		}
	}
	if got := escape("a\\b\"c\nd\x1b\xff"); got != `a\\b\"c`+"\ufffdd\ufffd\ufffd" {
		t.Errorf("got %q", got)
	}
}

// TestNoQuantilesWithoutRequests: a process without requests in the last minute has no
// quantiles, not quantiles of zero.
func TestNoQuantilesWithoutRequests(t *testing.T) {
	n := &Node{Tally: NewTally(allLabels), Everything: true, Processes: []api.Process{
		{PID: 1, Requests: &api.Requests{Count: 7}},
		{PID: 2, Requests: &api.Requests{Count: 7, P50: 1, P99: 1}},
	}}
	all := samples(t, Text(n))
	for _, name := range []string{"giveway_process_request_p50_seconds", "giveway_process_request_p99_seconds"} {
		_, old := all[name+`{pid="1"}`]
		if _, recent := all[name+`{pid="2"}`]; old || !recent {
			t.Errorf("%s: shown of a process with old requests: %v, with recent ones: %v", name, old, recent)
		}
	}
}

// TestStates compares the states with those of package sched.
func TestStates(t *testing.T) {
	for i, name := range states {
		if got := sched.State(i).String(); got != name {
			t.Errorf("state %d: got %s, want %s", i, got, name)
		}
	}
	if last := sched.State(len(states)).String(); !strings.HasPrefix(last, "unknown") {
		t.Errorf("state %s is missing", last)
	}
}
