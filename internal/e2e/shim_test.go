package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// TestShimOrder runs 25 orders of calls that programs rely on (order.cu) natively
// and behind the gate: open, bounded, with stream classes, held every few milliseconds, and with
// late entry beside a batch job. The output must be the same.
func TestShimOrder(t *testing.T) {
	b := newTestbed(t)
	for _, cudart := range []string{"-cudart=static", "-cudart=shared"} {
		program := b.nvcc("order.cu", cudart)
		native, err := exec.Command(program, "2").CombinedOutput()
		if err != nil {
			t.Fatalf("native: %v\n%s", err, native)
		}
		if b.daemon == nil {
			t.Logf("native\n%s", native)
			b.startShimOnlyDaemon()
		}
		for _, gate := range []string{"open", "--bound 1", "--bound 4", "--bound 16", "--stream-classes", "held", "late"} {
			flags := []string{"run", "--class", "batch"}
			if strings.HasPrefix(gate, "--") {
				flags = append(flags, strings.Fields(gate)...)
			}
			var beside *client
			if gate == "late" {
				flags = []string{"run", "--class", "online", "--late-entry", "on"}
				beside = b.run("--class batch", batchJob+" --ns-per-iteration "+b.nsPer)
			}
			cmd := b.command("giveway", append(flags, "--", program, "3")...)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			holds, late := 0, uint64(0)
			switch gate {
			case "held":
				holds = b.pauseAndResumeUntil(done)
			case "late":
				late = b.lateRequestsUntil(done)
				b.atLeast(cudart+": requests that entered late", float64(late), 10)
			}
			select {
			case err = <-done:
			case <-time.After(60 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatalf("%s, gate %s: no end within 60 s\n%s", cudart, gate, out.String())
			}
			if err != nil || out.String() != string(native) {
				t.Errorf("%s, gate %s: got %v and\n%s\nwant the native output", cudart, gate, err, out.String())
			}
			b.record(cudart+" gate "+gate, nil, values{"holds": float64(holds), "late_requests": float64(late)})
			if beside != nil {
				beside.kill()
			}
		}
	}
}

// pauseAndResumeUntil pauses and resumes every process until done holds a value, for
// at most a minute, and returns the number of pauses.
func (b *testbed) pauseAndResumeUntil(done chan error) (pauses int) {
	for end := time.Now().Add(time.Minute); len(done) == 0 && time.Now().Before(end); {
		for _, verb := range []string{"pause", "resume"} {
			for _, p := range b.ps() {
				if _, err := b.giveway(verb, strconv.Itoa(p.PID)); err == nil && verb == "pause" {
					pauses++
				}
			}
			time.Sleep(15 * time.Millisecond)
		}
	}
	return pauses
}

// lateRequestsUntil returns the largest number of requests that entered late in one process
// before done held a value, for at most a minute.
func (b *testbed) lateRequestsUntil(done chan error) (most uint64) {
	b.Helper()
	for end := time.Now().Add(time.Minute); len(done) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, p := range b.ps() {
			if p.Shim != nil {
				most = max(most, p.Shim.Late)
			}
		}
	}
	return most
}

var costSetting = flag.String("cost", "", "the only setting that TestShimCost measures; empty: all")

// TestShimCost measures what a launch costs through the shim and through the driver.
// One process measures both in turns: two processes of one program differ by more
// than the shim costs.
//
// Measured on an H200, shim / driver: launch and wait 1.006 to 1.009, bursts 1.012 to
// 1.018; with a bound of 16, 1.015 to 1.021 and 1.063 to 1.064. With late entry on, the
// process is alone on the device and has nothing to gain.
func TestShimCost(t *testing.T) {
	b := newTestbed(t)
	program := b.nvcc("launch.cu")
	b.startDaemon()
	path, err := b.command("giveway", "run", "--class", "standard", "--", "printenv", "LD_PRELOAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	// The order in which launch.cu reports, first for the driver and then for the shim.
	figures := []string{"launch+wait p50", "launch+wait p99", "burst p50", "burst p90"}
	for _, setting := range []struct {
		name, flags string
		limits      []float64 // of the figures
	}{
		{"bound 0", "--class standard --bound 0", []float64{1.05, 1.50, 1.07, 1.50}},
		{"bound 16", "--class standard --bound 16", []float64{1.07, 1.50, 1.15, 1.50}},
		{"late entry", "--class online --late-entry on", []float64{1.05, 1.50, 1.07, 1.50}},
	} {
		if *costSetting != "" && *costSetting != setting.name {
			continue
		}
		driver, shim, ratio := make([][]float64, len(figures)), make([][]float64, len(figures)), make([][]float64, len(figures))
		for range 7 {
			cmd := exec.Command(program, strings.TrimSpace(string(path)))
			cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+b.socket)
			c := b.startCommand(cmd)
			b.set(c.pid, strings.Fields(setting.flags)...)
			us := c.measureSamples()
			c.kill()
			if len(us) != 2*len(figures) {
				t.Fatalf("launch.cu reports %d figures, want %d", len(us), 2*len(figures))
			}
			for i := range figures {
				d, s := us[i], us[len(figures)+i]
				driver[i], shim[i], ratio[i] = append(driver[i], d), append(shim[i], s), append(ratio[i], s/d)
			}
		}
		for i, f := range figures {
			name := setting.name + ": " + f
			b.record(name, nil, values{"driver_us": median(driver[i]), "shim_us": median(shim[i])}, "medians of 7 processes")
			b.atMost(name+", shim / driver", median(ratio[i]), setting.limits[i])
		}
	}
}

// TestShimOnly measures holding and bounding launches with the driver left alone, for
// bounds from 1 to 16, and then kills the daemon while the gate is closed.
//
// Measured on an H200: native P50 1640 us; bound 1 276 to 309 us, bound 4 914 to
// 946 us; batch work 0.90 to 0.92 and 0.93 to 0.95 of native; the gate opens 0.34 to
// 0.56 s after the daemon's death.
func TestShimOnly(t *testing.T) {
	b := newTestbed(t)
	b.startShimOnlyDaemon()
	online := b.run("--class online", "lc --kernel 28us --after 5ms --wait --seconds 3 --ns-per-iteration "+b.nsPerTiny)
	alone := online.measure()
	b.record("alone", &alone, nil)
	batch := b.run("--class batch", "be --kernel 200us --depth 64 --ns-per-iteration "+b.nsPer)
	measured := map[string]*runs{}
	for range 3 {
		for _, policy := range boundPolicies {
			b.policy(policy)
			var latency stats.Summary
			rate := batch.rateDuring(func() { latency = online.measure() })
			b.record(policy, &latency, values{"batch_per_s": rate})
			if measured[policy] == nil {
				measured[policy] = &runs{}
			}
			measured[policy].add(latency, rate)
		}
	}
	native := measured["native"]
	for bound, limit := range map[string]struct{ latency, batch float64 }{
		"1": {0.25, 0.80},
		"4": {0.72, 0.83},
	} {
		got := measured[boundPolicy+bound]
		b.atMost("bound "+bound+": P50 / native", got.p50()/native.p50(), limit.latency)
		b.atLeast("bound "+bound+": batch rate / native", got.rate()/native.rate(), limit.batch)
	}

	b.policy("giveway")
	b.mustGiveway("pause", strconv.Itoa(batch.pid))
	time.Sleep(500 * time.Millisecond)
	b.atMost("kernels per second while held", batch.rate(500*time.Millisecond), 0)
	b.killDaemon()
	took, moved := batch.awaitProgress()
	if !moved {
		t.Fatal("the client is still held 3 s after the daemon was killed")
	}
	b.record("daemon killed while held", nil, values{"recovery_s": took.Seconds()})
	b.atMost("seconds until the gate opens", took.Seconds(), 1.2)
}

// TestAnnouncedArrivals measures a client that arrives every 5 ms beside a batch job:
// unannounced, announced 1.5 ms ahead (giveway_expect_ns), and predicted (--predict).
//
// Measured on an H200: with kernels parked by the client itself P50 41 to 46 us;
// native 1640 us; giveway 234 us; announced 40 to 45 us, on stalling hosts up to 55;
// predicted 39 to 61 us; the batch job keeps 0.88 to 0.93 of its rate alone.
func TestAnnouncedArrivals(t *testing.T) {
	b := newTestbed(t)
	lc := "lc --kernel 28us --every 5ms --awake --wait --seconds 4 --ns-per-iteration " + b.nsPerTiny
	var parked runs
	c := b.start(lc + " --parked 2 --lead 300us")
	for range 3 {
		latency := c.measure()
		b.record("alone, parked by client", &latency, nil)
		parked.add(latency, 0)
	}
	c.kill()
	b.startDaemon()
	c = b.run("--class online", lc+" --announce 1500us")
	b.await(c.pid)
	time.Sleep(500 * time.Millisecond)
	latency := c.measure()
	b.record("alone, announced", &latency, nil)
	c.kill()

	batch := b.startJob()
	alone := batch.rate(3 * time.Second)
	b.set(batch.pid, "--class", "batch")
	measured := map[string]*runs{}
	for _, s := range []struct{ name, policy, run, args string }{
		{"native", "native", "--class online", ""},
		{"giveway", "slo", "--class online", ""},
		{"announced", "slo", "--class online", " --announce 1500us"},
		{"predicted", "slo", "--class online --predict", ""},
	} {
		b.policy(s.policy)
		c := b.run(s.run, lc+s.args)
		b.await(c.pid)
		time.Sleep(500 * time.Millisecond)
		c.measure() // learns the period, prepares the parked kernels
		measured[s.name] = &runs{}
		for range 3 {
			var latency stats.Summary
			kept := batch.rateDuring(func() { latency = c.measure() }) / alone
			b.record(s.name, &latency, values{"batch_of_alone": kept})
			measured[s.name].add(latency, kept)
		}
		t.Logf("shim counters: %s", b.shimText())
		c.kill()
	}
	native, plain, announced, predicted := measured["native"], measured["giveway"], measured["announced"], measured["predicted"]
	b.atMost("P50 giveway / native", plain.p50()/native.p50(), 0.20)
	b.atMost("P50 announced / parked by client", announced.p50()/parked.p50(), 1.40)
	b.atMost("P90 announced / giveway", announced.p90()/plain.p90(), 0.60)
	b.atMost("P50 predicted / giveway", predicted.p50()/plain.p50(), 0.38)
	b.atLeast("batch kept, announced", announced.rate(), 0.80)
	b.atLeast("batch kept, predicted", predicted.rate(), 0.80)
}

// shimText returns the shim's part of giveway ps --json, on one line.
func (b *testbed) shimText() string {
	out, _ := b.giveway("ps", "--json")
	_, shim, _ := strings.Cut(out, `"shim":`)
	shim, _, _ = strings.Cut(strings.Join(strings.Fields(shim), ""), "}")
	return shim
}

// TestGuard stops guarded kernels (giveway_guard.h), by the program itself and by
// giveway pause, and resumes or repeats them.
func TestGuard(t *testing.T) {
	b := newTestbed(t)
	program := b.nvcc("guard.cu")
	out, err := exec.Command(program).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	b.recordGuard(string(out))
	b.startShimOnlyDaemon()
	for _, mode := range []string{"held", "twice"} {
		b.pauseGuardedKernel(program, mode)
	}
}

// recordGuard records what guard.cu measures: how long a stop takes, and what the guard costs.
func (b *testbed) recordGuard(out string) {
	b.Helper()
	var blocks, count int
	var plain, guarded, ratio, p50, p99, longest float64
	for line := range strings.Lines(out) {
		if _, err := fmt.Sscanf(line, "kernel of %d blocks: %f ms, guarded %f ms (%f x)", &blocks, &plain, &guarded, &ratio); err == nil {
			b.record("guard, cost", nil, values{"plain_ms": plain, "guarded_ms": guarded, "ratio": ratio})
		}
		if _, err := fmt.Sscanf(line, "a stop takes p50 %f us, p99 %f us, max %f us, of %d", &p50, &p99, &longest, &count); err == nil {
			b.record("guard, stop", nil, values{"p50_us": p50, "p99_us": p99, "max_us": longest, "stops": float64(count)})
		}
	}
	if ratio == 0 || count == 0 {
		b.Errorf("guard.cu prints neither its cost nor how long a stop takes:\n%s", out)
	}
}

// pauseGuardedKernel pauses the program twice and checks that its kernel was stopped.
func (b *testbed) pauseGuardedKernel(program, mode string) {
	b.Helper()
	c := b.runProgram("--class batch", program+" "+mode)
	defer c.kill()
	b.await(c.pid)
	fmt.Fprintln(c.in, "start")
	for _, verb := range []string{"pause", "resume", "pause", "resume"} {
		time.Sleep(300 * time.Millisecond)
		b.mustGiveway(verb, strconv.Itoa(c.pid))
	}
	select {
	case stops := <-c.samples:
		b.record("guarded kernel, "+mode, nil, values{"pauses": 2, "stops": stops[0]})
		b.atLeast("stops in 2 pauses, "+mode, stops[0], 1)
	case <-time.After(time.Minute):
		b.Fatalf("guard.cu %s: no answer within a minute", mode)
	}
}

// TestTrainingBound measures a training job without the shim, with it, and with a
// bound of 16. The host's speed changes by more than the shim costs within seconds, so
// the settings alternate in 60 pairs of short periods.
//
// Measured on an H200: a bound of 16 keeps 0.98 to 0.99 of the rate without a bound;
// the shim without a bound keeps 0.98 to 1.00 of the rate without the shim.
func TestTrainingBound(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	var native, unbounded, ratio []float64
	for range 3 {
		plain := b.startTorch("be")
		plain.rate(2 * time.Second)
		native = append(native, plain.rate(8*time.Second))
		plain.kill()
		c := b.runTorch("--class standard", "be")
		b.await(c.pid)
		c.rate(2 * time.Second)
		rate := func(bound string) float64 {
			b.set(c.pid, "--bound", bound)
			time.Sleep(200 * time.Millisecond) // reports are up to 0.1 s old
			return c.rate(600 * time.Millisecond)
		}
		for i := range 20 {
			var without, with float64
			if i%2 == 0 { // each setting comes first equally often
				without, with = rate("0"), rate("16")
			} else {
				with, without = rate("16"), rate("0")
			}
			unbounded, ratio = append(unbounded, without), append(ratio, with/without)
		}
		c.kill()
	}
	b.record("no shim", nil, values{"training_per_s": median(native)}, fmt.Sprintf("3 processes: %.2f", native))
	b.record("shim, no bound", nil, values{"training_per_s": median(unbounded)})
	b.record("bound 16 / no bound", nil, values{"mean": mean(ratio), "standard_error": standardError(ratio), "median": median(ratio)}, "60 pairs")
	b.atLeast("rate with a bound of 16 / without", median(ratio), 0.92)
	b.atLeast("rate with the shim / without", median(unbounded)/median(native), 0.88)
}
