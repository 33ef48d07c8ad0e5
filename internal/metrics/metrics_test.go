package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

var status = api.Status{
	Version: "1.2", PID: 7, Uptime: 90*time.Second + time.Millisecond,
	Policy:  api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}, Overruled: "stalled"},
	Devices: []api.Device{{ID: "GPU-a", Model: "NVIDIA H200", Backend: "nvidia", Eyes: true}, {ID: "GPU-b", Index: 1, Model: "NVIDIA H200", Backend: "nvidia"}},
	Checks:  []api.Check{{Name: "secret check"}}, KernelLogLines: 42, Goroutines: 9,
}

var processes = []api.Process{
	{
		PID: 812, Command: "python --password=hunter2", User: "alice", UID: 1000, Class: "online", Container: "c0ffee", Pod: "web-0",
		Queues:   []api.Queue{{ID: 1, Device: "GPU-a", State: "running", Served: 93*time.Second + 250*time.Millisecond, Measured: true}},
		Shim:     &api.Shim{Runtime: "cuda", Launched: 9, Completed: 8, Holds: 2, HeldFor: time.Second, Overruns: 1, Parked: 5, Hits: 4, ParkedFor: time.Millisecond, Saved: time.Microsecond},
		Requests: &api.Requests{Count: 7, P50: time.Millisecond, P99: 2 * time.Millisecond},
	},
	{
		PID: 4711, User: "bob", UID: 1001, Class: "batch", Paused: true,
		Queues: []api.Queue{
			{ID: 2, Device: "GPU-a", State: "stopped", Served: time.Nanosecond},
			{ID: 3, Device: "GPU-a", State: "stopping"}, // the same process on the same device
		},
	},
	{PID: 5000, User: "root", Class: "batch"},
}

const page1 = `# HELP giveway_build_info The daemon's version; always 1.
# TYPE giveway_build_info gauge
giveway_build_info{version="1.2"} 1
# HELP giveway_uptime_seconds How long the daemon has run.
# TYPE giveway_uptime_seconds gauge
giveway_uptime_seconds 90.001
# HELP giveway_policy_info The policy in charge; always 1.
# TYPE giveway_policy_info gauge
giveway_policy_info{policy="giveway"} 1
# HELP giveway_policy_overruled Whether the policy made a mistake and the vendor's own scheduling stands in for it.
# TYPE giveway_policy_overruled gauge
giveway_policy_overruled 1
# HELP giveway_kernel_log_lines_total Wrong guesses at handles, each of which may have left a line in the kernel's log.
# TYPE giveway_kernel_log_lines_total counter
giveway_kernel_log_lines_total 42
# HELP giveway_device_info A device that the daemon drives; always 1.
# TYPE giveway_device_info gauge
giveway_device_info{device="GPU-a",index="0",model="NVIDIA H200",backend="nvidia"} 1
giveway_device_info{device="GPU-b",index="1",model="NVIDIA H200",backend="nvidia"} 1
# HELP giveway_device_eyes Whether the hardware's own record of who ran is read.
# TYPE giveway_device_eyes gauge
giveway_device_eyes{device="GPU-a"} 1
giveway_device_eyes{device="GPU-b"} 0
# HELP giveway_processes Programs on the devices, by class.
# TYPE giveway_processes gauge
giveway_processes{class="online"} 1
giveway_processes{class="standard"} 0
giveway_processes{class="batch"} 2
giveway_processes{class="idle"} 0
# HELP giveway_processes_paused Programs that somebody has paused.
# TYPE giveway_processes_paused gauge
giveway_processes_paused 1
# HELP giveway_queue_served_seconds_total Time on the device.
# TYPE giveway_queue_served_seconds_total counter
giveway_queue_served_seconds_total{device="GPU-a",pid="812",queue="1",class="online",user="alice"} 93.25
giveway_queue_served_seconds_total{device="GPU-a",pid="4711",queue="2",class="batch",user="bob"} 1e-09
giveway_queue_served_seconds_total{device="GPU-a",pid="4711",queue="3",class="batch",user="bob"} 0
# HELP giveway_queue_measured Whether the hardware says how long it was served; otherwise it is a guess.
# TYPE giveway_queue_measured gauge
giveway_queue_measured{device="GPU-a",pid="812",queue="1"} 1
giveway_queue_measured{device="GPU-a",pid="4711",queue="2"} 0
giveway_queue_measured{device="GPU-a",pid="4711",queue="3"} 0
# HELP giveway_queue_state 1 for the state that the queue is in, 0 for the others.
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
# HELP giveway_shim_launched_total Commands put on a device.
# TYPE giveway_shim_launched_total counter
giveway_shim_launched_total{pid="812"} 9
# HELP giveway_shim_completed_total Of those, known to be done.
# TYPE giveway_shim_completed_total counter
giveway_shim_completed_total{pid="812"} 8
# HELP giveway_shim_holds_total Launches that had to wait at the gate.
# TYPE giveway_shim_holds_total counter
giveway_shim_holds_total{pid="812"} 2
# HELP giveway_shim_held_seconds_total Time that threads waited there.
# TYPE giveway_shim_held_seconds_total counter
giveway_shim_held_seconds_total{pid="812"} 1
# HELP giveway_shim_overruns_total Times the bound was let go because nothing moved.
# TYPE giveway_shim_overruns_total counter
giveway_shim_overruns_total{pid="812"} 1
# HELP giveway_shim_parked_total Times the device was taken ahead of an arrival.
# TYPE giveway_shim_parked_total counter
giveway_shim_parked_total{pid="812"} 5
# HELP giveway_shim_parked_hits_total Of those, times the arrival came.
# TYPE giveway_shim_parked_hits_total counter
giveway_shim_parked_hits_total{pid="812"} 4
# HELP giveway_shim_parked_seconds_total Time that the device was held so: what others lost at most.
# TYPE giveway_shim_parked_seconds_total counter
giveway_shim_parked_seconds_total{pid="812"} 0.001
# HELP giveway_shim_saved_seconds_total Time that arrivals did not wait because of it, as the program estimates.
# TYPE giveway_shim_saved_seconds_total counter
giveway_shim_saved_seconds_total{pid="812"} 1e-06
# HELP giveway_requests_total Requests that are over.
# TYPE giveway_requests_total counter
giveway_requests_total{pid="812"} 7
# HELP giveway_request_seconds How long the last requests took.
# TYPE giveway_request_seconds gauge
giveway_request_seconds{pid="812",quantile="0.5"} 0.001
giveway_request_seconds{pid="812",quantile="0.99"} 0.002
# HELP giveway_goroutines Goroutines of the daemon.
# TYPE giveway_goroutines gauge
giveway_goroutines 9
`

func TestText(t *testing.T) {
	if got := string(Text(status, processes)); got != page1 {
		t.Errorf("got\n%s", got)
	}
}

// TestDocs: the page has every metric there is, with its kind, and no other.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var are, told []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(page1, -1) {
		are = append(are, m[1]+" "+m[2])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(giveway_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		told = append(told, m[1]+" "+m[2])
	}
	if !slices.Equal(are, told) {
		t.Errorf("there are %q\ndocs/METRICS.md has %q", are, told)
	}
}

// The format as its description has it: a name, labels whose values have every
// backslash, quote and line feed escaped, a number.
var line = regexp.MustCompile(`^(# (HELP|TYPE) giveway_[a-z_]+ .+|giveway_[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\})? [0-9.e+-]+)$`)

// TestHostileText: a name that somebody made up does not become a sample.
func TestHostileText(t *testing.T) {
	for _, name := range []string{
		"a\"} 1\ngiveway_fake 1\n#", `\`, `\n`, "\xff\xfe", "\r\n", "", strings.Repeat("{", 5000), "\x00\u2028",
	} {
		st, ps := status, slices.Clone(processes)
		st.Version, st.Policy.Name = name, name
		st.Devices = []api.Device{{ID: name, Model: name, Backend: name}}
		ps[0].User, ps[0].Class = name, name
		ps[0].Queues = []api.Queue{{Device: name, State: name, Served: -1}}
		text := string(Text(st, ps))
		if text != strings.ToValidUTF8(text, "?") {
			t.Errorf("%q: not UTF-8", name)
		}
		seen := map[string]bool{}
		for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			if !line.MatchString(l) || strings.HasPrefix(l, "giveway_fake") {
				t.Errorf("%q: %s", name, l)
			}
			series := l[:strings.LastIndex(l, " ")]
			if seen[series] && !strings.HasPrefix(l, "#") {
				t.Errorf("%q: twice: %s", name, l)
			}
			seen[series] = true
		}
	}
	if got := escape("a\\b\"c\nd\xff"); got != `a\\b\"c\nd`+"\ufffd" {
		t.Errorf("got %q", got)
	}
}

// TestStates: these are the scheduler's.
func TestStates(t *testing.T) {
	for i, name := range states {
		if got := sched.State(i).String(); got != name {
			t.Errorf("state %d is %s, not %s", i, got, name)
		}
	}
	if last := sched.State(len(states)).String(); !strings.HasPrefix(last, "unknown") {
		t.Errorf("there is a state %s", last)
	}
}
