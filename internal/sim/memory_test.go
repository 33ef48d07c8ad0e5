package sim_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// heapRecorder measures the heap at given times of the simulation.
type heapRecorder struct {
	at   []time.Duration
	heap []int64
}

func (h *heapRecorder) Record(now sched.Time, _ []sched.Event, _ []sched.Action) {
	if len(h.heap) == len(h.at) || now.Sub(0) < h.at[len(h.heap)] {
		return
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.heap = append(h.heap, int64(m.HeapAlloc))
}

// TestLongRunsTakeFlatMemory measures the heap after a tenth of a run and at its end.
// Nothing may grow with time: not the latencies of clients, open-loop or not, nor what is
// left of queues that were closed.
func TestLongRunsTakeFlatMemory(t *testing.T) {
	busy := open(600*us, sim.Kernels{Count: 1, Time: sim.Always(20 * us)})
	busy.Attr.SLO = ms
	churn := flatOut(1, 500*us, 64)
	churn.Lifetime, churn.Downtime = sim.Around(3*ms, 0.5), sim.Around(ms, 0.5)
	for name, tt := range map[string]struct {
		length  time.Duration
		clients []sim.ClientConfig
	}{
		"flat out":  {50 * time.Second, []sim.ClientConfig{flatOut(0, 50*us, 4)}},
		"open loop": {40 * time.Second, []sim.ClientConfig{busy, flatOut(0, ms, 4)}},
		"churn":     {50 * time.Second, []sim.ClientConfig{open(10*ms, sim.Kernels{Count: 1, Time: sim.Always(us)}), churn}},
	} {
		for _, device := range []string{"nvidia-h200", "level1-npu"} {
			h := &heapRecorder{at: []time.Duration{tt.length / 10, tt.length - 100*ms}}
			r := sim.New(sim.Config{
				Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Clients: tt.clients,
				Policy: choose(t, "giveway", nil), Length: tt.length, Recorder: h,
			}).Run()
			if len(h.heap) != 2 {
				t.Fatalf("%s on %s: the heap was measured %d times, want 2", name, device, len(h.heap))
			}
			t.Logf("%s on %s: %d then %d KiB, %d events", name, device, h.heap[0]>>10, h.heap[1]>>10, r.Events)
			if grown := h.heap[1] - h.heap[0]; grown > 512<<10 {
				t.Errorf("%s on %s: the heap grew from %d to %d bytes between %v and %v", name, device, h.heap[0], h.heap[1], h.at[0], h.at[1])
			}
		}
	}
}
