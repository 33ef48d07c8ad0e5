package backends

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSimulatedConfig checks that the daemon of a simulation gets the policy and the
// scheduler's limits of the scenario.
func TestSimulatedConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.yaml")
	const text = `
name: x
policy: {name: giveway, turn: 20ms}
daemon: {floor: 10%}
devices: [{model: nvidia-h200}]
clients: [{name: train, kernels: {time: 1ms}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, cfg, err := Simulated(file, 1)
	if err != nil {
		t.Fatal(err)
	}
	if b.Name() != "sim" || cfg.Policy.Name != "giveway" || cfg.Policy.Params["turn"] != "20ms" || cfg.Sched.Floor != 0.1 {
		t.Errorf("backend %s, policy %v, floor %v, want sim, giveway:turn=20ms and 0.1", b.Name(), cfg.Policy, cfg.Sched.Floor)
	}
	if _, _, err := Simulated(file, 0); err == nil {
		t.Error("Simulated at speed 0 succeeded, want an error")
	}
}
