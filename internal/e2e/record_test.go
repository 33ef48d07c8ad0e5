package e2e

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	control "github.com/giveway/giveway/client"
)

// onlineJob is an online client whose requests are one short kernel, every 5 ms.
const onlineJob = "lc --kernel 28us --alone 44us --after 5ms --awake --wait"

// TestDelays compares what the daemon says of delays with what the client saw: with the
// vendor's slices a request waits for the rest of the batch job's slice of 2 ms.
func TestDelays(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	b.policy("native")
	online := b.run("--class online --late-entry off", onlineJob+" --seconds 8")
	alone := online.measure()
	b.record("alone", &alone, nil)
	batch := b.start("be --kernel 40ms --depth 16")
	b.await(online.pid, batch.pid)
	before := b.delays(online.pid)
	samples := online.measureSamples()
	time.Sleep(time.Second) // delays are accounted for within half a second
	after := b.delays(online.pid)

	latency := summarize(samples)
	seen := 0.0 // seconds
	for _, us := range samples {
		seen += us/1e6 - alone.P50.Seconds()
	}
	behind := (after[batch.pid] - before[batch.pid]).Seconds()
	switching := (after[0] - before[0]).Seconds()
	b.record("native", &latency, values{"seen_s": seen, "behind_batch_s": behind, "switching_s": switching})
	b.atLeast("P50 native / alone", float64(latency.P50)/float64(alone.P50), 5)
	b.atLeast("delays / seen by the client", (behind+switching)/seen, 0.95)
	b.atMost("delays / seen by the client", (behind+switching)/seen, 1.05)
}

// delays returns how long a process has waited, by the pid of the holder. What is not a process
// has pid 0.
func (b *testbed) delays(pid int) map[int]time.Duration {
	b.Helper()
	d, err := control.New(b.socket).Delays(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	sums := map[int]time.Duration{}
	for _, row := range d.Delays {
		if row.PID == pid {
			b.Logf("delay behind %s %d: %v, estimated %v", row.Holder.Kind, row.Holder.PID, row.Total, row.Estimated)
			sums[row.Holder.PID] += row.Total
		}
	}
	return sums
}

// TestAccount: the states of the device add up to the time that passed, and the device time of
// processes to the time in which the device was held.
func TestAccount(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	online := b.run("--class online", onlineJob+" --seconds 20")
	jobs := b.startJobs(2)
	b.await(online.pid, jobs[0].pid, jobs[1].pid)
	for _, j := range jobs {
		b.set(j.pid, "--class", "batch")
	}
	time.Sleep(time.Second)
	before, begun := b.metrics(), time.Now()
	latency := online.measure()
	after, took := b.metrics(), time.Since(begun).Seconds()
	state := func(name string) float64 {
		return grown(before, after, "giveway_device_state_seconds_total", `state="`+name+`"`)
	}
	held, all := state("held"), grown(before, after, "giveway_device_state_seconds_total", "")
	served := grown(before, after, "giveway_class_device_seconds_total", "")
	b.record("giveway", &latency, values{
		"took_s": took, "held_s": held, "switching_s": state("switching"), "idle_s": state("idle"), "unknown_s": state("unknown"), "served_s": served,
	})
	b.atLeast("sum of the states / time", all/took, 0.99)
	b.atMost("sum of the states / time", all/took, 1.01)
	b.atLeast("device time of processes / held", served/held, 0.99)
	b.atMost("device time of processes / held", served/held, 1.01)
	b.atMost("priority inversions", grown(before, after, "giveway_priority_inversions_total", ""), 0)
}

// metrics returns the daemon's metrics by name and labels.
func (b *testbed) metrics() map[string]float64 {
	b.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return control.Dial(ctx, b.socket) }
	answer, err := (&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}).Get("http://giveway/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	all := map[string]float64{}
	for in := bufio.NewScanner(answer.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), "} ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = v
		}
	}
	if len(all) == 0 {
		b.Fatalf("GET /metrics: status %s and no metrics", answer.Status)
	}
	return all
}

// grown returns by how much the counters of a name with a label grew together.
func grown(before, after map[string]float64, name, label string) float64 {
	var sum float64
	for key, v := range after {
		if strings.HasPrefix(key, name+"{") && strings.Contains(key, label) {
			sum += v - before[key]
		}
	}
	return sum
}

// TestTraceOfGPU records a trace, computes its decisions again, and looks at the same programs
// through the other views.
func TestTraceOfGPU(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	online := b.run("--class online --slo 2ms", onlineJob+" --seconds 8")
	jobs := b.startJobs(2)
	for _, j := range jobs {
		b.set(j.pid, "--class", "batch")
	}
	file := filepath.Join(t.TempDir(), "gpu.pftrace")
	if dir := os.Getenv(resultsEnv); dir != "" {
		file = filepath.Join(dir, "gpu.pftrace")
	}
	latency := online.measure()
	b.record("giveway", &latency, nil)
	done := make(chan struct{})
	go func() { online.measureSamples(); close(done) }()
	b.Log(b.mustGiveway("trace", "record", "5s", "-o", file))
	b.Log(b.mustGiveway("trace", "replay", file))
	for _, view := range [][]string{{"ps"}, {"top"}, {"explain", strconv.Itoa(online.pid)}, {"explain", strconv.Itoa(jobs[0].pid)}, {"log"}, {"doctor"}} {
		out := b.mustGiveway(view...)
		b.Logf("giveway %s\n%s", strings.Join(view, " "), out)
		if view[0] != "log" && view[0] != "doctor" && !strings.Contains(out, strconv.Itoa(online.pid)) && !strings.Contains(out, strconv.Itoa(jobs[0].pid)) {
			b.Errorf("giveway %s names neither process", strings.Join(view, " "))
		}
	}
	<-done
	all, err := control.New(b.socket).Processes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		for device, bytes := range all[i].Memory {
			b.record("memory of "+strings.TrimPrefix(all[i].Command, b.bundle+"/"), nil, values{"bytes": float64(bytes)}, device)
		}
		b.atLeast("devices whose memory is known", float64(len(all[i].Memory)), 1)
	}
}

// TestRecordCost: an online client beside 64 batch jobs and beside two of them. Its P99 must not
// depend on how many there are, and what the record costs is its entries times the cost of one
// (BenchmarkRecord). CPU time is that of the daemon and of its children.
func TestRecordCost(t *testing.T) {
	b := newTestbed(t)
	online := b.start(onlineJob + " --seconds 5")
	jobs := b.startJobs(64)
	b.startDaemon()
	b.await(online.pid)
	b.set(online.pid, "--class", "online")
	for _, j := range jobs {
		b.set(j.pid, "--class", "batch")
	}
	time.Sleep(15 * time.Second) // 12 newcomers at a time are tried, in a fifth of the time
	measure := func(name string) (r runs) {
		for range 3 {
			cpu, seq, begun := b.cpuTime(), b.newest(), time.Now()
			latency := online.measure()
			took := time.Since(begun).Seconds()
			r.add(latency, 0)
			b.record(name, &latency, values{"daemon_cores": (b.cpuTime() - cpu).Seconds() / took, "entries_per_s": float64(b.newest()-seq) / took})
		}
		return r
	}
	many := measure("64 jobs")
	for _, j := range jobs[2:] {
		j.kill()
	}
	time.Sleep(2 * time.Second)
	few := measure("2 jobs")
	b.atMost("P99, 64 jobs / 2 jobs", many.p99()/few.p99(), 1.35)
}

// newest returns the number of the newest entry of the record.
func (b *testbed) newest() uint64 {
	b.Helper()
	r, err := control.New(b.socket).Record(context.Background(), api.RecordQuery{Last: true, Limit: 1})
	if err != nil {
		b.Fatal(err)
	}
	return r.Next
}

// cpuTime returns the CPU time of the daemon and its children so far.
func (b *testbed) cpuTime() time.Duration {
	b.Helper()
	sum := cpuTimeOf(b, b.daemon.Process.Pid)
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(b.daemon.Process.Pid) + "/task/*/children")
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		for child := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(child); err == nil {
				sum += cpuTimeOf(b, pid)
			}
		}
	}
	return sum
}

// cpuTimeOf reads a process's time in user and in kernel mode, in ticks of 10 ms.
func cpuTimeOf(b *testbed, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	kernel, _ := strconv.Atoi(fields[12])
	return time.Duration(user+kernel) * 10 * time.Millisecond
}
