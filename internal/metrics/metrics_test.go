package metrics

import (
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
	Devices: []api.Device{{ID: "GPU-a", Model: "NVIDIA H200", Backend: "nvidia", Trace: true, Switching: &api.Switching{Lost: 1500 * time.Millisecond, Switches: 900, Share: 0.1, Rate: 7}}, {ID: "GPU-b", Index: 1, Model: "NVIDIA H200", Backend: "nvidia"}},
	Checks:  []api.Check{{Name: "secret check"}}, KernelLogLines: 42, Goroutines: 9,
}

func attrs(text string) attr.Resolved {
	return attr.Resolve(&attr.Layers{attr.FromSet: attr.Must(text)})
}

var processes = []api.Process{
	{
		PID: 812, Command: "python --password=hunter2", User: "alice", UID: 1000, Attrs: attrs("class=online"), Container: "c0ffee", Pod: "web-0",
		Queues:   []api.Queue{{ID: 1, Device: "GPU-a", State: "running", Served: 93*time.Second + 250*time.Millisecond, Measured: true}},
		Shim:     &api.Shim{Runtime: "cuda", Launched: 9, Completed: 8, Holds: 2, HeldFor: time.Second, Overruns: 1, Parked: 5, Hits: 4, ParkedFor: time.Millisecond, Saved: time.Microsecond, LateRequests: 6, LateEarly: 1, LateFor: 3 * time.Millisecond},
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

const wantText = `# HELP giveway_build_info The daemon's version; always 1.
# TYPE giveway_build_info gauge
giveway_build_info{version="1.2"} 1
# HELP giveway_uptime_seconds Time since the daemon was started.
# TYPE giveway_uptime_seconds gauge
giveway_uptime_seconds 90.001
# HELP giveway_policy_info The policy in force; always 1.
# TYPE giveway_policy_info gauge
giveway_policy_info{policy="giveway"} 1
# HELP giveway_policy_overruled 1 while a policy is overruled because of a mistake and the vendor's own scheduling is in force.
# TYPE giveway_policy_overruled gauge
giveway_policy_overruled 1
# HELP giveway_kernel_log_lines_total Wrong guesses at handles. Each may have left a line in the kernel's log.
# TYPE giveway_kernel_log_lines_total counter
giveway_kernel_log_lines_total 42
# HELP giveway_device_info A device that the daemon drives; always 1.
# TYPE giveway_device_info gauge
giveway_device_info{device="GPU-a",index="0",model="NVIDIA H200",backend="nvidia"} 1
giveway_device_info{device="GPU-b",index="1",model="NVIDIA H200",backend="nvidia"} 1
# HELP giveway_device_trace 1 if the hardware's context-switch trace is read.
# TYPE giveway_device_trace gauge
giveway_device_trace{device="GPU-a"} 1
giveway_device_trace{device="GPU-b"} 0
# HELP giveway_device_switching_seconds_total Time lost in context switches.
# TYPE giveway_device_switching_seconds_total counter
giveway_device_switching_seconds_total{device="GPU-a"} 1.5
# HELP giveway_device_switches_total Context switches.
# TYPE giveway_device_switches_total counter
giveway_device_switches_total{device="GPU-a"} 900
# HELP giveway_processes Processes on the devices, by class.
# TYPE giveway_processes gauge
giveway_processes{class="online"} 1
giveway_processes{class="standard"} 0
giveway_processes{class="batch"} 2
giveway_processes{class="idle"} 0
# HELP giveway_processes_paused Processes that are paused.
# TYPE giveway_processes_paused gauge
giveway_processes_paused 1
# HELP giveway_queue_served_seconds_total Device time.
# TYPE giveway_queue_served_seconds_total counter
giveway_queue_served_seconds_total{device="GPU-a",pid="812",queue="1",class="online",user="alice"} 93.25
giveway_queue_served_seconds_total{device="GPU-a",pid="4711",queue="2",class="batch",user="bob"} 1e-09
giveway_queue_served_seconds_total{device="GPU-a",pid="4711",queue="3",class="batch",user="bob"} 0
# HELP giveway_queue_measured 1 if the hardware measured the device time; 0 if it is estimated.
# TYPE giveway_queue_measured gauge
giveway_queue_measured{device="GPU-a",pid="812",queue="1"} 1
giveway_queue_measured{device="GPU-a",pid="4711",queue="2"} 0
giveway_queue_measured{device="GPU-a",pid="4711",queue="3"} 0
# HELP giveway_queue_on_floor 1 if the policy gives the queue less than the floor, which gives it the rest.
# TYPE giveway_queue_on_floor gauge
giveway_queue_on_floor{device="GPU-a",pid="812",queue="1"} 0
giveway_queue_on_floor{device="GPU-a",pid="4711",queue="2"} 1
giveway_queue_on_floor{device="GPU-a",pid="4711",queue="3"} 0
# HELP giveway_queue_state 1 for the state of the queue, 0 for the other states.
# TYPE giveway_queue_state gauge
giveway_queue_state{device="GPU-a",pid="812",queue="1",state="running"} 1
giveway_queue_state{device="GPU-a",pid="812",queue="1",state="stopping"} 0
giveway_queue_state{device="GPU-a",pid="812",queue="1",state="stopped"} 0
giveway_queue_state{device="GPU-a",pid="812",queue="1",state="starting"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="2",state="running"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="2",state="stopping"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="2",state="stopped"} 1
giveway_queue_state{device="GPU-a",pid="4711",queue="2",state="starting"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="3",state="running"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="3",state="stopping"} 1
giveway_queue_state{device="GPU-a",pid="4711",queue="3",state="stopped"} 0
giveway_queue_state{device="GPU-a",pid="4711",queue="3",state="starting"} 0
# HELP giveway_shim_launched_total Commands launched.
# TYPE giveway_shim_launched_total counter
giveway_shim_launched_total{pid="812"} 9
# HELP giveway_shim_completed_total Commands known to be completed.
# TYPE giveway_shim_completed_total counter
giveway_shim_completed_total{pid="812"} 8
# HELP giveway_shim_holds_total Launches that waited at the gate.
# TYPE giveway_shim_holds_total counter
giveway_shim_holds_total{pid="812"} 2
# HELP giveway_shim_held_seconds_total Time that threads waited at the gate.
# TYPE giveway_shim_held_seconds_total counter
giveway_shim_held_seconds_total{pid="812"} 1
# HELP giveway_shim_overruns_total Times the bound was exceeded because nothing moved.
# TYPE giveway_shim_overruns_total counter
giveway_shim_overruns_total{pid="812"} 1
# HELP giveway_shim_parked_total Times the device was taken ahead of a request.
# TYPE giveway_shim_parked_total counter
giveway_shim_parked_total{pid="812"} 5
# HELP giveway_shim_parked_hits_total Times a request arrived while the device was held for it.
# TYPE giveway_shim_parked_hits_total counter
giveway_shim_parked_hits_total{pid="812"} 4
# HELP giveway_shim_parked_seconds_total Time that the device was held ahead of requests: the most that other processes lost.
# TYPE giveway_shim_parked_seconds_total counter
giveway_shim_parked_seconds_total{pid="812"} 0.001
# HELP giveway_shim_saved_seconds_total Time that requests did not wait because of it, by the shim's estimate.
# TYPE giveway_shim_saved_seconds_total counter
giveway_shim_saved_seconds_total{pid="812"} 1e-06
# HELP giveway_shim_late_requests_total Requests that entered the device late.
# TYPE giveway_shim_late_requests_total counter
giveway_shim_late_requests_total{pid="812"} 6
# HELP giveway_shim_late_early_total Of those, requests that the program waited for before the planned moment: wrong guesses.
# TYPE giveway_shim_late_early_total counter
giveway_shim_late_early_total{pid="812"} 1
# HELP giveway_shim_late_seconds_total Time for which late entry left the device to others.
# TYPE giveway_shim_late_seconds_total counter
giveway_shim_late_seconds_total{pid="812"} 0.003
# HELP giveway_requests_total Requests that finished.
# TYPE giveway_requests_total counter
giveway_requests_total{pid="812"} 7
# HELP giveway_request_seconds Time that the last requests took.
# TYPE giveway_request_seconds gauge
giveway_request_seconds{pid="812",quantile="0.5"} 0.001
giveway_request_seconds{pid="812",quantile="0.99"} 0.002
# HELP giveway_goroutines Goroutines of the daemon.
# TYPE giveway_goroutines gauge
giveway_goroutines 9
`

func TestText(t *testing.T) {
	if got := string(Text(status, processes)); got != wantText {
		t.Errorf("got\n%s", got)
	}
}

// TestDocs: docs/METRICS.md lists every metric with its type, and no other.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var written, documented []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(wantText, -1) {
		written = append(written, m[1]+" "+m[2])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(giveway_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	if !slices.Equal(written, documented) {
		t.Errorf("the daemon writes %q\ndocs/METRICS.md has %q", written, documented)
	}
}

// line is the format: a name, labels whose values have every backslash, quote and line
// feed escaped, and a number.
var line = regexp.MustCompile(`^(# (HELP|TYPE) giveway_[a-z_]+ .+|giveway_[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\})? [0-9.e+-]+)$`)

// TestHostileText: text that a user chose does not become a sample.
func TestHostileText(t *testing.T) {
	for _, name := range []string{
		"a\"} 1\ngiveway_fake 1\n#", `\`, `\n`, "\xff\xfe", "\r\n", "", strings.Repeat("{", 5000), "\x00\u2028",
	} {
		st, ps := status, slices.Clone(processes)
		st.Version, st.Policy.Name = name, name
		st.Devices = []api.Device{{ID: name, Model: name, Backend: name}}
		ps[0].User = name
		ps[0].Queues = []api.Queue{{Device: name, State: name, Served: -1}}
		text := string(Text(st, ps))
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
	if got := escape("a\\b\"c\nd\xff"); got != `a\\b\"c\nd`+"\ufffd" {
		t.Errorf("got %q", got)
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
