package e2e

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// TestOnlineLatency measures one online client beside batch kernels of 40 ms: alone,
// by the vendor's time-slicing, under giveway, and under giveway with the daemon's
// process stopped by SIGSTOP. The last two differ by what the daemon itself adds.
//
// Measured on an H200: native P50 1.65 ms; giveway P50 231 to 243 us, P99 256 to
// 317 us; daemon stopped P99 250 to 260 us; batch work 0.99 to 1.00 of native.
func TestOnlineLatency(t *testing.T) {
	b := newTestbed(t)
	online := b.start("lc --kernel 28us --alone 44us --after 5ms --awake --wait --seconds 5")
	alone := online.measure()
	b.record("alone", &alone, nil)
	batch := b.start("be --kernel 40ms --depth 16")
	measure := func(name string, into *runs) {
		var latency stats.Summary
		rate := batch.rateDuring(func() { latency = online.measure() })
		b.record(name, &latency, values{"batch_per_s": rate})
		into.add(latency, rate)
	}
	var native, giveway, stopped runs
	for range 3 {
		measure("native", &native)
	}
	b.startDaemon()
	b.set(online.pid, "--class", "online")
	b.set(batch.pid, "--class", "batch")
	time.Sleep(time.Second)
	for range 3 {
		measure("giveway", &giveway)
		_ = b.daemon.Process.Signal(syscall.SIGSTOP)
		measure("daemon stopped", &stopped)
		_ = b.daemon.Process.Signal(syscall.SIGCONT)
	}
	b.atMost("P50 giveway / native", giveway.p50()/native.p50(), 0.20)
	b.atMost("P99 giveway / native P50", giveway.p99()/native.p50(), 0.24)
	b.atMost("P99 giveway / daemon stopped", giveway.p99()/stopped.p99(), 1.35)
	b.atLeast("batch rate giveway / native", giveway.rate()/native.rate(), 0.90)
}

// TestMPS runs four batch clients of an MPS server, whose channel group is one queue
// for all of them (measured: online P50 250 us where native has 1653 us, batch 1.00).
func TestMPS(t *testing.T) {
	b := newTestbed(t)
	if _, err := exec.LookPath("nvidia-cuda-mps-control"); err != nil {
		t.Skip("no nvidia-cuda-mps-control on this machine")
	}
	online := b.start("lc --kernel 28us --after 5ms --wait --seconds 5")
	alone := online.measure()
	b.record("alone", &alone, nil)
	mps := b.startMPS()
	var clients []*client
	for range 4 {
		cmd := b.command("giveway-bench", strings.Fields(batchJob+" --ns-per-iteration "+b.nsPer)...)
		cmd.Env = append(cmd.Env, mps...)
		clients = append(clients, b.startCommand(cmd))
	}
	measure := func(name string) (stats.Summary, float64) {
		latency, rate := online.measure(), sumOfRates(clients, 2*time.Second)
		b.record(name, &latency, values{"batch_per_s": rate})
		return latency, rate
	}
	native, nativeRate := measure("native")
	b.startDaemon("-v")
	b.await(online.pid)
	_, err := b.giveway("set", strconv.Itoa(clients[0].pid), "--class", "batch")
	if err == nil || !strings.Contains(err.Error(), "MPS") {
		t.Errorf("set on a client of MPS: got error %v, want one that names the MPS server", err)
	}
	server := 0
	for _, p := range b.ps() {
		for _, q := range p.Queues {
			if q.Shared == "mps" {
				server = p.PID
			}
		}
	}
	if server == 0 {
		t.Fatalf("giveway ps lists no queue of the MPS server: %+v", b.ps())
	}
	b.set(online.pid, "--class", "online")
	b.set(server, "--class", "batch")
	time.Sleep(time.Second)
	got, rate := measure("giveway, server as batch")
	b.atMost("P50 giveway / native", float64(got.P50)/float64(native.P50), 0.25)
	b.atLeast("batch rate giveway / native", rate/nativeRate, 0.85)
	for _, c := range clients {
		c.kill()
	}
}

// startMPS starts an MPS server and returns the environment of its clients.
func (b *testbed) startMPS() []string {
	b.Helper()
	dir := b.TempDir()
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}
	start := exec.Command("nvidia-cuda-mps-control", "-d")
	start.Env = append(os.Environ(), env...)
	if out, err := start.CombinedOutput(); err != nil {
		b.Skipf("start MPS: %v: %s", err, out)
	}
	b.Cleanup(func() {
		stop := exec.Command("nvidia-cuda-mps-control")
		stop.Env = append(os.Environ(), env...)
		stop.Stdin = strings.NewReader("quit -t 2\n")
		if out, err := stop.CombinedOutput(); err != nil {
			b.Logf("stop MPS: %v: %s", err, out)
		}
	})
	return env
}

// TestTorchSlices measures ResNet-50, as a CUDA graph and launched kernel by kernel
// (eager), beside a training job, with batch slices from the vendor's to the minimum.
// The policy slo chooses among these slices.
//
// Measured on an H200: graph P50 1.26 ms alone, 2.28 native, 1.27 at the minimum
// slice, training 0.99 of native; eager at the minimum slice as alone, training 0.73
// to 0.85 of native.
func TestTorchSlices(t *testing.T) {
	b := newTestbed(t)
	modes := []string{"graph", "eager"}
	online := map[string]*client{}
	alone := map[string]stats.Summary{}
	for _, mode := range modes {
		online[mode] = b.startTorch("lc --mode " + mode + " --every-ms 20 --wait --seconds 5")
	}
	for _, mode := range modes {
		online[mode].measure() // the first requests are slower than all later ones
		alone[mode] = online[mode].measure()
		latency := alone[mode]
		b.record(mode+" alone", &latency, nil)
	}
	batch := b.startTorch("be")
	b.record("training alone", nil, values{"training_per_s": batch.rate(4 * time.Second)})
	b.startDaemon()
	for _, mode := range modes {
		b.set(online[mode].pid, "--class", "online")
	}
	b.set(batch.pid, "--class", "batch")
	measured := map[string]*runs{}
	for _, policy := range slicePolicies {
		b.policy(policy)
		for _, mode := range modes {
			var latency stats.Summary
			rate := batch.rateDuring(func() { latency = online[mode].measure() })
			b.record(mode+" "+policy, &latency, values{"training_per_s": rate})
			if measured[mode+policy] == nil {
				measured[mode+policy] = &runs{}
			}
			measured[mode+policy].add(latency, rate)
		}
	}
	for mode, limit := range map[string]struct{ ofAlone, ofNative, training float64 }{
		"graph": {1.30, 0.75, 0.85},
		"eager": {1.40, 1.05, 0.55},
	} {
		native, giveway := measured[mode+"native"], measured[mode+"giveway"]
		aloneUs := float64(alone[mode].P50) / float64(time.Microsecond)
		b.atMost(mode+": P50 giveway / alone", giveway.p50()/aloneUs, limit.ofAlone)
		b.atMost(mode+": P50 giveway / native", giveway.p50()/native.p50(), limit.ofNative)
		b.atLeast(mode+": training giveway / native", giveway.rate()/native.rate(), limit.training)
	}
}
