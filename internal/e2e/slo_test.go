package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestSLO gives the policy slo the same SLO for two kinds of online work: ResNet-50
// launched kernel by kernel (eager) and as a CUDA graph. The SLO is 1.2 x the P99 of
// the eager client at the minimum slice, measured at the start.
//
// Measured on an H200 in three runs: eager 99.6 to 100 % in time with training at 0.95
// to 0.98 of the better fixed setting; graph 100 % and 1.02 to 1.04.
func TestSLO(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	batch := b.runTorch("--class batch", "be")
	slo := time.Duration(0)
	for _, mode := range []string{"eager", "graph"} {
		online := b.runTorch("--class online", "lc --mode "+mode+" --every-ms 20 --wait --seconds 8")
		b.await(batch.pid, online.pid)
		b.policy("giveway")
		online.measure() // the first requests are slower than all later ones
		if slo == 0 {
			slo = (online.measure().P99 * 6 / 5).Round(100 * time.Microsecond)
		}
		b.set(online.pid, "--slo", slo.String())
		fixed := map[string]sloRun{}
		measureFixed := func() {
			for _, policy := range []string{"native", "giveway"} {
				b.policy(policy)
				fixed[policy] = fixed[policy].plus(b.measureSLO(mode+" "+policy, online, batch, slo))
			}
		}
		measureFixed()
		b.policy("slo")
		loop, _ := b.measureLoop(mode, online, batch, slo)
		measureFixed() // again, as the host's speed changes

		best := max(fixed["native"].inTime(), fixed["giveway"].inTime())
		b.atLeast(mode+": in time, slo / better fixed setting", loop.inTime()/best, 0.95)
		// The better setting is the one with more batch work among those in time.
		better := fixed["giveway"].rate()
		for _, f := range fixed {
			if f.inTime() >= 0.99 {
				better = max(better, f.rate())
			}
		}
		b.atLeast(mode+": training, slo / better fixed setting", loop.rate()/better, 0.80)
		online.kill()
	}
}

// TestSLOSynchronous gives an SLO of 10.5 ms to a client that waits for each of its 30
// kernels, where no fixed slice is enough and the batch queue must be stopped.
//
// Measured on an H200: 99.4 % in time where both fixed settings have 0 %, training
// 22.9/s where native has 28.1 and the minimum slice 18.1; 81 % on a host that stalled.
func TestSLOSynchronous(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	batch := b.runTorch("--class batch", "be")
	online := b.run("--slo 10.5ms", "lc --kernel 28us --kernels 30 --gap 200us --each --tell --every 25ms --wait --seconds 8 --ns-per-iteration "+b.nsPerTiny)
	b.await(batch.pid, online.pid)
	const slo = 10500 * time.Microsecond
	b.policy("giveway")
	minimum := b.measureSLO("giveway", online, batch, slo)
	b.policy("slo")
	loop, parts := b.measureLoop("synchronous", online, batch, slo)
	b.policy("native")
	native := b.measureSLO("native", online, batch, slo)
	var inTime []float64
	for _, p := range parts {
		inTime = append(inTime, p.inTime())
	}
	b.atLeast("in time, slo, median of 3", median(inTime), 0.80)
	b.atLeast("in time, slo less the better fixed setting", loop.inTime()-max(native.inTime(), minimum.inTime()), 0)
	b.atLeast("training, slo / native", loop.rate()/native.rate(), 0.60)
	b.atLeast("training, slo / minimum slice", loop.rate()/minimum.rate(), 0.95)
}

// TestSLOLoop gives an SLO of 5 ms to a loop that waits for each of its kernels of 100 us. The
// slower its requests are, the fewer it makes: the SLO leaves batch work what it gets natively.
func TestSLOLoop(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	const slo = 5 * time.Millisecond
	batch := b.run("--class batch", batchJob+" --ns-per-iteration "+b.nsPer)
	online := b.run("--slo 5ms", "lc --kernel 100us --after 60us --awake --wait --seconds 6 --ns-per-iteration "+b.nsPerTiny)
	b.await(batch.pid, online.pid)
	b.policy("native")
	native := b.measureSLO("native", online, batch, slo)
	b.policy("slo")
	done := make(chan string)
	go func() {
		out, err := b.giveway("trace", "record", "5s", "-o", filepath.Join(cmp.Or(os.Getenv(resultsEnv), t.TempDir()), "slo-loop.pftrace"))
		done <- fmt.Sprint(out, err)
	}()
	b.measureSLO("slo, first seconds", online, batch, slo)
	t.Log(<-done)
	loop := b.measureSLO("slo", online, batch, slo)
	b.atLeast("in time", loop.inTime(), 0.99)
	b.atLeast("batch rate, slo / native", loop.rate()/native.rate(), 0.7)
}

// sloRun is what an online and a batch client did side by side.
type sloRun struct {
	slo       time.Duration
	latencies []float64 // microseconds
	steps     int64     // of the batch client
	took      time.Duration
	slices    []string // of the batch client, sampled twice a second
}

func (r sloRun) plus(next sloRun) sloRun {
	return sloRun{
		next.slo, slices.Concat(r.latencies, next.latencies), r.steps + next.steps, r.took + next.took,
		slices.Concat(r.slices, next.slices),
	}
}

// inTime returns the share of requests within the SLO.
func (r sloRun) inTime() float64 {
	met := 0
	for _, v := range r.latencies {
		if v <= float64(r.slo.Microseconds()) {
			met++
		}
	}
	return float64(met) / float64(len(r.latencies))
}

// rate returns the batch client's steps per second.
func (r sloRun) rate() float64 { return float64(r.steps) / r.took.Seconds() }

func (b *testbed) recordSLO(name string, r sloRun) {
	b.Helper()
	latency := summarize(r.latencies)
	b.record(name, &latency, values{"in_time": r.inTime(), "slo_ms": float64(r.slo) / 1e6, "training_per_s": r.rate()},
		"slices "+strings.Join(slices.Compact(slices.Clone(r.slices)), ", "))
}

// measureSLO measures an online and a batch client side by side.
func (b *testbed) measureSLO(name string, online, batch *client, slo time.Duration) sloRun {
	b.Helper()
	stop, sampled := make(chan struct{}), make(chan []string)
	go func() {
		var seen []string
		for {
			select {
			case <-stop:
				sampled <- seen
				return
			case <-time.After(500 * time.Millisecond): // shorter trials of the policy can be missed
				seen = append(seen, b.batchSlice(batch.pid))
			}
		}
	}()
	r := sloRun{slo: slo}
	from, at := batch.progress()
	r.latencies = online.measureSamples()
	to, until := batch.progress()
	r.steps, r.took = to-from, until-at
	close(stop)
	r.slices = <-sampled
	b.recordSLO(name, r)
	return r
}

// measureLoop measures the policy slo from its first request on, in three parts, and
// returns their sum and the parts.
func (b *testbed) measureLoop(name string, online, batch *client, slo time.Duration) (sum sloRun, parts []sloRun) {
	b.Helper()
	for i := range 3 {
		r := b.measureSLO(fmt.Sprintf("%s slo, part %d", name, i+1), online, batch, slo)
		parts, sum = append(parts, r), sum.plus(r)
	}
	b.recordSLO(name+" slo", sum)
	return sum, parts
}

// batchSlice names the slice of a process's first queue. It may run beside the test's
// own goroutine, so it fails nothing.
func (b *testbed) batchSlice(pid int) string {
	out, err := b.giveway("ps", "--json")
	var printed struct{ Processes []process }
	if err == nil {
		err = json.Unmarshal([]byte(out), &printed)
	}
	if err != nil {
		return "unknown"
	}
	for _, p := range printed.Processes {
		if p.PID != pid || len(p.Queues) == 0 {
			continue
		}
		switch q := p.Queues[0]; {
		case q.State == sched.Stopped.String():
			return "stopped"
		case q.Slice == 0:
			return "vendor's"
		case q.Slice == sched.MinSlice:
			return "minimum"
		default:
			return q.Slice.String()
		}
	}
	return "unknown"
}

func standardError(of []float64) float64 {
	m, sum := mean(of), 0.0
	for _, v := range of {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum/float64(len(of)-1)) / math.Sqrt(float64(len(of)))
}

func mean(of []float64) (sum float64) {
	for _, v := range of {
		sum += v
	}
	return sum / float64(len(of))
}
