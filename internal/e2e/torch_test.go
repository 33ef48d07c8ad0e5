package e2e

import (
	"os/exec"
	"testing"
	"time"
)

// TestTorchSlices measures ResNet-50, as a graph and kernel by kernel, beside a
// training job, with batch slices from the vendor's to the least: what a policy
// that looks for the longest slice that will do has to choose from. GIVEWAY_TORCH
// names the client script.
func TestTorchSlices(t *testing.T) {
	b := newBed(t)
	torch := func(args ...string) *work {
		cmd := exec.Command("python3", append([]string{"-u", b.torchScript()}, args...)...)
		cmd.Env = b.command("giveway").Env
		return b.workBy(cmd)
	}
	graph := torch("lc", "--mode", "graph", "--every-ms", "20", "--wait", "--seconds", "5")
	eager := torch("lc", "--mode", "eager", "--every-ms", "20", "--wait", "--seconds", "5")
	t.Logf("graph alone: %v", graph.measure())
	t.Logf("eager alone: %v", eager.measure())
	batch := torch("be")
	t.Logf("training alone: %.2f/s", batch.rate(4*time.Second))
	b.start()
	b.set(graph.pid, "--class", "online")
	b.set(eager.pid, "--class", "online")
	b.set(batch.pid, "--class", "batch")
	for _, p := range []string{"native", "giveway:slice=2ms", "giveway:slice=1ms", "giveway:slice=500us", "giveway:slice=200us", "giveway"} {
		if _, err := b.giveway("policy", p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		for name, w := range map[string]*work{"graph": graph, "eager": eager} {
			var q quantiles
			trained := batch.during(func() { q = w.measure() })
			t.Logf("%-20s %s: %v, training %.2f/s", p, name, q, trained)
		}
	}
}
