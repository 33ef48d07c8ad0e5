package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// visitRecorder keeps the last visits of each queue.
type visitRecorder map[sched.QueueID]sched.Visits

func (r visitRecorder) Record(_ sched.Time, events []sched.Event, _ []sched.Action) {
	for i := range events {
		if ev := &events[i]; ev.Kind == sched.DeviceTimeMeasured {
			r[ev.Queue] = ev.Visits
		}
	}
}

// TestVisitsOfARunlist checks what the context-switch trace of a simulated GPU reports with
// the vendor's slices: the visits of a job that saturates are full, those of one that does
// not are not, and the requests of a client that is away in between arrive.
func TestVisitsOfARunlist(t *testing.T) {
	r := visitRecorder{}
	lc := lone()
	lc.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 25 * ms}
	sim.New(sim.Config{
		Seed: 1, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Policy: choose(t, "native", nil),
		Clients: []sim.ClientConfig{saturating(1, kernel212, 0), light(2), lc}, Length: 2 * time.Second, Recorder: r,
	}).Run()
	heavy, small, online := r[1], r[2], r[3]
	if !heavy.Known || heavy.Count < 400 || heavy.Full < heavy.Count*9/10 {
		t.Errorf("saturating job: got %+v, want hundreds of visits, nine of ten full", heavy)
	}
	if small.Count < 400 || small.Full > small.Count/10 {
		t.Errorf("light job: got %+v, want hundreds of visits, at most one of ten full", small)
	}
	if online.Count < 70 || online.Arrived < sched.Time(1950*ms) {
		t.Errorf("online client: got %+v, want 80 visits and the last arrival", online)
	}
}
