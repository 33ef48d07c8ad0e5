package describe

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
)

// TestStateNamesJobsThatRunSideBySide checks the state of jobs that take no turns.
func TestStateNamesJobsThatRunSideBySide(t *testing.T) {
	for _, c := range []struct {
		queue  api.Queue
		paused bool
		want   string
	}{
		{api.Queue{State: "running"}, false, "running"},
		{api.Queue{State: "running", SideBySide: true}, false, "running side by side"},
		{api.Queue{State: "stopped", SideBySide: true}, true, "paused"},
	} {
		if got := useOf([]api.Queue{c.queue}, c.paused).State; got != c.want {
			t.Errorf("%+v: got %q, want %q", c.queue, got, c.want)
		}
	}
}

// TestStopMethod: the way in which AMD's queues are stopped follows the abilities.
func TestStopMethod(t *testing.T) {
	u := useOf([]api.Queue{{State: "running", Can: []string{"hold", "interrupt"}, KFDQueues: 3, Way: "own"}}, false)
	if want := "hold,interrupt,(own),(3 queues)"; u.Can != want {
		t.Errorf("got %q, want %q", u.Can, want)
	}
}

// TestQuantilesOfNoRequests: a process whose last requests are old has a count, and no
// quantiles.
func TestQuantilesOfNoRequests(t *testing.T) {
	for _, c := range []struct {
		requests *api.Requests
		p50, p99 string
	}{
		{nil, "", ""},
		{&api.Requests{Count: 7}, "", ""},
		{&api.Requests{Count: 7, P50: time.Millisecond, P99: 2 * time.Millisecond}, "1.00ms", "2.00ms"},
	} {
		p := &api.Process{Requests: c.requests}
		if got := [2]string{P50(p), P99(p)}; got != [2]string{c.p50, c.p99} {
			t.Errorf("%+v: got %q, want %q and %q", c.requests, got, c.p50, c.p99)
		}
	}
}

func queue(id uint64, device string, served time.Duration) api.Queue {
	return api.Queue{ID: id, Device: device, Served: served}
}

func TestShares(t *testing.T) {
	start := time.Unix(1000, 0)
	before := Sample{start, []api.Process{
		{PID: 1, Queues: []api.Queue{queue(1, "a", 5*time.Second), queue(2, "b", 0)}},
		{PID: 2, Queues: []api.Queue{queue(3, "a", time.Second)}},
		{PID: 3, Member: &api.Member{Server: 2, Served: time.Second}},
		{PID: 5, Queues: []api.Queue{queue(9, "a", time.Hour)}}, // the pid is reused
	}}
	after := Sample{start.Add(2 * time.Second), []api.Process{
		{PID: 1, Queues: []api.Queue{queue(1, "a", 6*time.Second), queue(2, "b", 3*time.Second)}},
		{PID: 2, Queues: []api.Queue{queue(3, "a", 1500*time.Millisecond)}},
		{PID: 3, Member: &api.Member{Server: 2, Served: 1400 * time.Millisecond}},
		{PID: 4, Queues: []api.Queue{queue(4, "a", time.Second)}}, // new
		{PID: 5, Queues: []api.Queue{queue(10, "a", time.Second)}},
	}}
	shares := Shares(before, after)
	for pid, want := range map[int]float64{1: 1.5, 2: 0.25, 3: 0.2} { // all of b, although 1.5 times the time was counted
		p := after.Processes[pid-1]
		if got, known := Share(shares, &p); !known || got < want-1e-9 || got > want+1e-9 {
			t.Errorf("process %d: got share %v, %v, want %v", pid, got, known, want)
		}
	}
	for _, i := range []int{3, 4} {
		if got, known := Share(shares, &after.Processes[i]); known {
			t.Errorf("process %d: got share %v, want none", after.Processes[i].PID, got)
		}
	}
	if got := Shares(after, before); len(got) != 0 {
		t.Errorf("samples in the wrong order: got %v, want none", got)
	}
}

func TestMembersBelow(t *testing.T) {
	all := []api.Process{
		{PID: 1, Member: &api.Member{Server: 3}},
		{PID: 2, Member: &api.Member{Server: 99}},
		{PID: 3},
		{PID: 4, Member: &api.Member{Server: 3, Lost: true}},
		{PID: 5, Member: &api.Member{Server: 5}}, // names itself
		{PID: 6, Member: &api.Member{Server: 3}},
	}
	var got []int
	for _, p := range MembersBelow(all) {
		got = append(got, p.PID)
	}
	if want := []int{2, 3, 1, 6, 4, 5}; len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	} else {
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
}

// TestEveryReasonIsExplained: no reason of the scheduler lacks a sentence.
func TestEveryReasonIsExplained(t *testing.T) {
	for _, r := range sched.Reasons() {
		named, known := byName(r.String())
		text := reasons[named]
		if !known || named != r || text.because == "" || len(text.change) == 0 && r != sched.ShuttingDown {
			t.Errorf("reason %v: got %+v, want a sentence and what would change it", r, text)
		}
	}
	if len(reasons) != len(sched.Reasons()) {
		t.Errorf("got %d explanations, want %d", len(reasons), len(sched.Reasons()))
	}
}

func from(source attr.Source, attrs string) attr.Resolved {
	var l attr.Layers
	l[source] = attr.Must(attrs)
	return attr.Resolve(&l)
}

func TestExplain(t *testing.T) {
	began := time.Date(2026, 11, 16, 12, 0, 0, 0, time.Local)
	root, bob := int64(0), int64(1001)
	train := api.Process{
		PID: 4711, Command: "python train.py", User: "bob", UID: 1001, Attrs: from(attr.FromSet, "class=batch weight=2 slo=5ms priority=0 paused=true"),
		Ignored: []api.Ignored{{Name: "slo", Mark: "ignored by rr", Reason: "policy rr does not use it"}},
		Queues:  []api.Queue{{ID: 1, Device: "GPU-a", State: "stopped", Reason: "other turn", DecidedFor: 1500 * time.Millisecond, Ready: true, Served: time.Minute}},
	}
	f := Facts{
		Process: &train, Policy: api.Policy{Name: "giveway"}, Devices: []api.Device{{ID: "GPU-a", Model: "H200"}}, Now: began.Add(time.Hour),
		All:    []api.Process{train, {PID: 812, Command: "python serve.py \x1b[2J"}},
		Shares: map[Key]float64{{4711, "GPU-a"}: 0.305}, Period: 400 * time.Millisecond,
		Delays: &api.Delays{Delays: []api.Delay{
			{PID: 4711, Holder: api.Holder{Kind: "switch"}, Last10: 30 * time.Millisecond, Estimated: true},
			{PID: 4711, Holder: api.Holder{Kind: "process", PID: 812}, Last10: 2 * time.Second},
			{PID: 812, Holder: api.Holder{Kind: "process", PID: 4711}, Last10: time.Second},
			{PID: 4711, Holder: api.Holder{Kind: "idle"}},
		}},
		Orders: &api.Record{Clock: api.Clock{Began: began}, Entries: []api.Entry{
			{PID: 4711, At: time.Minute, Order: &api.Order{Name: "set", UID: &root, PID: 77, Command: "giveway", From: "weight 1", To: "weight 2"}},
			{PID: 4711, At: time.Minute, Order: &api.Order{Name: "set", UID: &root, From: "weight=2", To: "weight=2"}},
			{PID: 4711, At: time.Minute, Order: &api.Order{Name: "set", UID: &root, From: "paused=false", To: "paused=true"}},
			{PID: 4711, At: time.Minute, Order: &api.Order{Name: "set", UID: &root, From: "paused=true", To: "paused=true"}},
			{PID: 812, At: time.Minute, Order: &api.Order{Name: "set", To: "weight 9"}},
			{At: 90 * time.Second, Order: &api.Order{Name: "policy", UID: &root, From: "rr", To: "giveway"}},
			{At: 90 * time.Second, Order: &api.Order{Name: "policy", UID: &bob, To: "fifo", Refused: true}},
			{PID: 4711, At: 2 * time.Minute, Order: &api.Order{Name: "set", UID: &bob, To: "class online", Refused: true, Reason: "user bob may not"}},
		}},
	}
	want := `Process 4711 (python train.py) of user bob is of class batch.
On GPU 0 (H200) it waits, for 1.50s, since 12:59:58.500: it is the turn of
another batch process. They take turns on what online work leaves, by their
weights.
It has had 30.5% of the device time in the last 400ms, and 1m00s in all.

Waits in the last 10 s:
  2.00s while process 812 (python serve.py ?[2J) had the device
  about 30.0ms while the device switched between contexts

Attributes:
  class batch, by 'giveway set'
  weight 2, by 'giveway set'
  slo 5ms, by 'giveway set'; it has no effect now: policy rr does not use it
  paused, by 'giveway pause'

Orders, the last first:
  2026-11-16 12:02:00 set by bob: class online; refused: user bob may not
  2026-11-16 12:01:30 policy by root: giveway, before rr
  2026-11-16 12:01:00 pause by root, unchanged
  2026-11-16 12:01:00 pause by root
  2026-11-16 12:01:00 set by root: weight=2, unchanged
  2026-11-16 12:01:00 set by root (giveway, pid 77): weight 2, before weight 1

What would change it:
  giveway set 4711 --weight N: with a larger N it gets a larger part of the
    time that batch work has
  giveway set 4711 --class standard: it is scheduled as the device itself
    does, and takes no turns
  giveway set 4711 --class online: it is not stopped any more, and batch work
    gives way to it
`
	if got := Write(Explain(f), 78); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestExplainLittle: a process of which little is known is explained as far as that goes.
func TestExplainLittle(t *testing.T) {
	for _, c := range []struct {
		p    api.Process
		want string
	}{
		{api.Process{PID: 7}, "It has no queue on a device that Giveway can see."},
		{api.Process{PID: 7, Queues: []api.Queue{{Index: -1, Device: "opencl", MayRun: true, DecidedFor: 1}}}, "it runs, for 1.00ns, since 23:59:59.999. Policy x gives no reason."},
		{api.Process{PID: 7, Queues: []api.Queue{{Index: -1, Device: "opencl", State: "running"}}}, "On a device of opencl it is running. The daemon gives no reason."},
		{api.Process{PID: 7, Queues: []api.Queue{{Reason: "tea break"}}}, "it waits: tea break."},
		{api.Process{PID: 7, Queues: []api.Queue{{MayRun: true, State: "stopped", Reason: "turn"}}}, "it is still being started"},
		{api.Process{PID: 7, Queues: []api.Queue{{State: "running", Reason: "other turn"}}}, "it still runs"},
		{api.Process{PID: 7, Member: &api.Member{Server: 9, Pool: "night"}}, "It is a member of pool night: process 9 has the queue"},
		{api.Process{PID: 7, Member: &api.Member{Server: 9, Lost: true}}, "Its MPS server, process 9, has exited."},
		{api.Process{PID: 7, Attrs: from(attr.FromSet, "paused=true"), Member: &api.Member{Server: 9}}, "and it is paused"},
	} {
		got := Write(Explain(Facts{Process: &c.p, Policy: api.Policy{Name: "x"}, UID: 1000}), 200)
		if !strings.Contains(got, c.want) || !strings.Contains(got, "belongs to another user") {
			t.Errorf("got\n%s\nwant it to contain %q", got, c.want)
		}
	}
}

// TestWriteFitsAnyWidth: no line is longer than the width, whatever the names are.
func TestWriteFitsAnyWidth(t *testing.T) {
	p := api.Process{PID: 7, Command: strings.Repeat("字\x1b[1m", 9000), User: "\xff\n", Container: strings.Repeat("f", 64), Queues: []api.Queue{{Reason: "turn"}}}
	for _, width := range []int{10, 40, 80} {
		for line := range strings.Lines(Write(Explain(Facts{Process: &p, All: []api.Process{p}}), width)) {
			if n := format.Width(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("width %d: got %d columns: %s", width, n, line)
			}
		}
	}
}

func TestMemory(t *testing.T) {
	p := &api.Process{Memory: map[string]uint64{"a": 2_500_000_000, "b": 500_000_000, "c": 1 << 63}}
	for device, want := range map[string]string{"a": "2.50GB", "b": "500MB", "d": "", "c": "9223372037GB", "": "9223372037GB"} {
		if got := Memory(p, device); got != want {
			t.Errorf("device %q: got %q, want %q", device, got, want)
		}
	}
}

// TestExplainNamesMarkedRequests: marked requests hide all others, so the explanation names
// them.
func TestExplainNamesMarkedRequests(t *testing.T) {
	for _, marked := range []bool{false, true} {
		p := &api.Process{PID: 7, Requests: &api.Requests{Open: 2, Marked: marked}}
		text := Write(Explain(Facts{Process: p}), 200)
		if got := strings.Contains(text, "Its requests are marked through the API; open: 2."); got != marked {
			t.Errorf("marked %v: got\n%s", marked, text)
		}
	}
}

// TestOrdersForAllDoNotHideOwn: many choices of a policy leave room for the order of the process.
func TestOrdersForAllDoNotHideOwn(t *testing.T) {
	own := api.Entry{PID: 7, Order: &api.Order{Name: "set", To: "weight=7"}}
	orders := &api.Record{Entries: []api.Entry{own}}
	for range 12 {
		orders.Entries = append(orders.Entries, api.Entry{Order: &api.Order{Name: "policy", To: "rr"}})
	}
	f := Facts{Process: &api.Process{PID: 7}, Orders: orders}
	lines := f.orderLines()
	if len(lines) != mostForAll+2 || !strings.Contains(lines[mostForAll], "set: weight=7") || lines[mostForAll+1] != "and 10 more" {
		t.Errorf("got %q, want %d policies, the order of the process, and how many are left", lines, mostForAll)
	}
}

// TestHintNamesNoGiver: another user may have given the hint, so the explanation does not say
// that the program did.
func TestHintNamesNoGiver(t *testing.T) {
	var layers attr.Layers
	layers[attr.FromHint] = attr.Must("class=online")
	f := Facts{Process: &api.Process{PID: 7, Attrs: attr.Resolve(&layers)}}
	if got := f.attrLines(); len(got) != 1 || got[0] != "class online, by a hint" {
		t.Errorf("got %q", got)
	}
}
