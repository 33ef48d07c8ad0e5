package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestDeviceTimeOfARequest checks that it is what is left of the time after batch work and lost time, and
// that it is unknown before the first request.
func TestDeviceTimeOfARequest(t *testing.T) {
	for _, tt := range []struct{ requests, want float64 }{{0, 0}, {0.5, 0}, {1, 60}, {4, 15}} {
		r := rung{requests: tt.requests, measurement: measurement{wall: 100 * ms, batch: 40 * ms}}
		if got := r.deviceTime(); got != time.Duration(tt.want*float64(ms)) {
			t.Errorf("%v requests: got %v, want %v ms", tt.requests, got, tt.want)
		}
	}
	r := rung{requests: 1, measurement: measurement{wall: 100 * ms, batch: 40 * ms, lost: refillPart * ms}}
	if got, want := r.deviceTime(), 59*ms-refillPart*ms; got != want {
		t.Errorf("with %v lost in switches: got %v, want %v", r.lost, got, want)
	}
}

// TestLadderStaysOnItsFirstRung checks that there is no milder rung to try than the first.
func TestLadderStaysOnItsFirstRung(t *testing.T) {
	x := newLadderRun(h200, ms)
	x.choose(0)
	if x.move(x.now); x.current != 0 || x.chosen != 0 {
		t.Errorf("on rung %d, chosen is %d, want 0", x.current, x.chosen)
	}
}

// TestLadderKnowsWhetherItPredicts checks that slo knows from plan to plan whether light queues run side by
// side only between regular requests: then late requests say that those were not regular.
func TestLadderKnowsWhetherItPredicts(t *testing.T) {
	node := newNode(t, "slo", nil, sharedGPU)
	node.measureEvery, node.visits, node.actionTime = 10*ms, true, 500*time.Microsecond
	for range 3 {
		node.openJob(batch(1), saturating, lightBurst)
	}
	online := node.openJob(sched.Queue{Attr: sched.Attr{Class: sched.Online, SLO: 2500 * us}}, periodic(20*ms, ms), 0)
	p, predicts := node.policies[0].(*slo), 0
	for range 300 {
		node.events = append(node.events, sched.Event{Kind: sched.RequestFinished, Queue: online.ID, Duration: 2 * ms})
		node.run(20 * ms)
		if p.ladder.predicts != p.base.sharesBetweenRequests {
			t.Fatalf("predicts %v, side by side between requests %v", p.ladder.predicts, p.base.sharesBetweenRequests)
		}
		if p.ladder.predicts {
			predicts++
		}
	}
	if predicts < 250 {
		t.Errorf("it predicts after %d of 300 requests, want 250", predicts)
	}
}
