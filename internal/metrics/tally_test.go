package metrics

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// samples returns the values of the samples of a text by series.
func samples(t *testing.T, text []byte) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		i := strings.LastIndex(l, " ")
		v, err := strconv.ParseFloat(strings.TrimSuffix(l[i+1:], "\n"), 64)
		if err != nil {
			t.Fatal(err)
		}
		all[l[:i]] = v
	}
	return all
}

// TestBoundedSeries: there are no more series than asked for and one for the others, what the
// series have together is all, and no counter goes down.
func TestBoundedSeries(t *testing.T) {
	const most, processes = 5, 40
	tally := NewTally(Labels{PID: true, User: true, Series: most})
	var queues []sched.Queue
	for i := range sched.QueueID(processes) {
		queues = append(queues, sched.Queue{ID: i + 1})
		tally.Open(i+1, "GPU-a", sched.Batch, Process{PID: int(i) + 1, User: fmt.Sprint("user", i)})
	}
	last := map[string]float64{}
	for round := range 10 {
		for i := range queues {
			queues[i].Served += time.Duration(i+1) * time.Millisecond
		}
		tally.Served(sched.Time(round)*sched.Time(time.Second), queues)
		now := samples(t, Text(&Node{Tally: tally, Everything: true}))
		series, sum := 0, 0.0
		for name, v := range now {
			if strings.HasPrefix(name, "giveway_process_device_seconds_total{") {
				series++
				sum += v
			}
		}
		all := now[`giveway_class_device_seconds_total{device="GPU-a",class="batch"}`]
		if series != most+1 || sum < all*0.999999 || sum > all*1.000001 || all == 0 {
			t.Fatalf("round %d: %d series have %v of %v", round, series, sum, all)
		}
		checkCounters(t, last, now)
		last = now
	}
	if last[`giveway_process_device_seconds_total{device="GPU-a",class="batch",pid="other",user="other"}`] == 0 {
		t.Errorf("got %v", last)
	}
}

var counterName = regexp.MustCompile(`(_total|_bucket|_count|_sum)(\{|$)`)

// checkCounters checks that no counter went down.
func checkCounters(t *testing.T, before, after map[string]float64) {
	t.Helper()
	for name, v := range after {
		if counterName.MatchString(name) && v < before[name] {
			t.Errorf("%s went from %v to %v", name, before[name], v)
		}
	}
}

// TestRoomForNewSeries: a series that was not used for a while makes room, and the new one
// begins at zero.
func TestRoomForNewSeries(t *testing.T) {
	tally := NewTally(Labels{PID: true, Series: 2})
	serve := func(at time.Duration, pid int, total time.Duration) {
		id := sched.QueueID(pid)
		if tally.queues[id] == nil {
			tally.Open(id, "GPU-a", sched.Batch, Process{PID: pid})
		}
		tally.Served(sched.Time(at), []sched.Queue{{ID: id, Served: total}})
	}
	value := func(pid string) float64 {
		v, ok := samples(t, Text(&Node{Tally: tally, Everything: true}))[`giveway_process_device_seconds_total{device="GPU-a",class="batch",pid="`+pid+`"}`]
		if !ok {
			return -1
		}
		return v
	}
	serve(0, 1, time.Second)
	serve(time.Minute, 2, time.Second)
	serve(4*time.Minute, 3, time.Second) // no room
	if value("1") != 1 || value("2") != 1 || value("3") != -1 || value("other") != 1 {
		t.Fatal(string(Text(&Node{Tally: tally, Everything: true})))
	}
	serve(5*time.Minute+time.Second, 3, 3*time.Second) // instead of 1
	if value("1") != -1 || value("2") != 1 || value("3") != 2 || value("other") != 1 {
		t.Error(string(Text(&Node{Tally: tally, Everything: true})))
	}
	serve(5*time.Minute+2*time.Second, 1, 5*time.Second) // 2 and 3 are in use
	if value("1") != -1 || value("other") != 5 {
		t.Error(string(Text(&Node{Tally: tally, Everything: true})))
	}
}

// TestHistogram: buckets are cumulative, a bound belongs to its bucket, and the last has all.
func TestHistogram(t *testing.T) {
	if len(bounds) != maxBuckets-1 {
		t.Fatalf("%d bounds, %d buckets", len(bounds), maxBuckets)
	}
	var h histogram
	for _, d := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 10*time.Microsecond + 1, 10 * time.Second, time.Hour} {
		h.observe(d)
	}
	p := page{name: "x_seconds"}
	p.histogram(&h)
	got := samples(t, p.text)
	for series, want := range map[string]float64{
		`x_seconds_bucket{le="1e-05"}`: 3, `x_seconds_bucket{le="2.5e-05"}`: 4, `x_seconds_bucket{le="5"}`: 4,
		`x_seconds_bucket{le="10"}`: 5, `x_seconds_bucket{le="+Inf"}`: 6, "x_seconds_count": 6,
	} {
		if got[series] != want {
			t.Errorf("%s: got %v, want %v", series, got[series], want)
		}
	}
	if sum := got["x_seconds_sum"]; sum < 3610 || sum > 3610.1 {
		t.Errorf("sum: got %v", sum)
	}
}

// TestFailures: failures are remembered for an hour, and the same one is reported once a
// minute.
func TestFailures(t *testing.T) {
	tally := NewTally(Labels{})
	at := func(d time.Duration, pid int, o sched.Outcome) bool {
		return tally.Over(Action{At: sched.Time(d), PID: pid, Verb: sched.Stop, Level: sched.LevelInterrupt, Outcome: o})
	}
	if at(0, 1, sched.Done) || at(0, 1, sched.Gone) {
		t.Error("an action that did not fail is reported")
	}
	if !at(time.Second, 1, sched.Refused) || at(2*time.Second, 1, sched.Refused) || !at(3*time.Second, 2, sched.Refused) || !at(4*time.Second, 1, sched.Unsupported) {
		t.Error("the same failure is reported twice, or another one not at all")
	}
	if !at(62*time.Second, 1, sched.Refused) {
		t.Error("a failure is not reported after a minute")
	}
	reports := 0
	for pid := range 1000 {
		if at(63*time.Second, 10+pid, sched.Refused) {
			reports++
		}
	}
	if reports == 0 || reports > maxReports {
		t.Errorf("%d of 1000 failures are reported", reports)
	}
	n, last := tally.Failures(sched.Time(time.Minute * 59))
	if n != 1005 || last.String() != "stop (interrupt) of process 1009: refused" {
		t.Errorf("got %d, %s", n, last.String())
	}
	if n, _ := tally.Failures(sched.Time(60*time.Minute + 30*time.Second)); n != 1001 {
		t.Errorf("after an hour: got %d", n)
	}
	if n, _ := tally.Failures(sched.Time(3 * time.Hour)); n != 0 {
		t.Errorf("after three hours: got %d", n)
	}
}

// TestManyProcesses: of more processes than series, the rest has no metrics of queues.
func TestManyProcesses(t *testing.T) {
	n := Node{Tally: NewTally(Labels{PID: true, Series: 3}), Everything: true}
	for pid := range 10 {
		n.Processes = append(n.Processes, api.Process{PID: pid + 1, Queues: []api.Queue{{ID: uint64(pid), Device: "GPU-a"}}, Shim: &api.Shim{}})
	}
	got := samples(t, Text(&n))
	count := 0
	for name := range got {
		if strings.HasPrefix(name, "giveway_queue_measured{") || strings.HasPrefix(name, "giveway_shim_holds_total{") {
			count++
		}
	}
	if count != 6 || got["giveway_processes_left_out"] != 7 {
		t.Errorf("got %d series, %v left out", count, got["giveway_processes_left_out"])
	}
}

// TestManyQueues: one process with many queues has no more than so many series of a metric.
func TestManyQueues(t *testing.T) {
	n := Node{Tally: NewTally(Labels{PID: true, Series: 9}), Everything: true}
	n.Processes = []api.Process{{PID: 1, Queues: []api.Queue{{ID: 1}}}, {PID: 2}}
	for id := range uint64(20) {
		n.Processes[1].Queues = append(n.Processes[1].Queues, api.Queue{ID: id + 2})
	}
	got := samples(t, Text(&n))
	counts := map[string]int{}
	for name := range got {
		name, _, _ = strings.Cut(name, "{")
		counts[name]++
	}
	if counts["giveway_queue_measured"] != 9 || counts["giveway_queue_on_floor"] != 9 || counts["giveway_queue_state"] != 8 || got["giveway_queues_left_out"] != 12 {
		t.Errorf("got %v, %v left out", counts, got["giveway_queues_left_out"])
	}
}

// TestScrapeWhileCounting: metrics are written while the daemon counts; the race detector
// watches, and no counter goes down.
func TestScrapeWhileCounting(t *testing.T) {
	n, queues := crowd()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			for j := range queues {
				queues[j].Served += time.Millisecond
			}
			now := sched.Time(i) * sched.Time(time.Minute)
			n.Tally.Served(now, queues)
			n.Tally.Request(now, sched.Online, Process{PID: i}, time.Millisecond, time.Second)
			n.Tally.Waited("GPU-a", time.Millisecond)
			n.Tally.Over(Action{At: now, PID: i, Verb: sched.Stop, Level: sched.LevelHold, Outcome: sched.Refused})
			n.Tally.SetClass(queues[i].ID, sched.Idle)
		}
	}()
	last := map[string]float64{}
	for counting := true; counting; {
		select {
		case <-done:
			counting = false
		default:
		}
		now := samples(t, Text(n))
		for name := range now { // a series that makes room may come back, from zero
			if strings.HasPrefix(name, "giveway_process_") {
				delete(now, name)
			}
		}
		checkCounters(t, last, now)
		last = now
	}
}
