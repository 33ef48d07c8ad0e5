package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestTrialsBesideOnlineWorkAreSmall checks how many newcomers are tried at a time.
func TestTrialsBesideOnlineWorkAreSmall(t *testing.T) {
	for online, want := range map[int]int{0: 12, 1: 3} {
		p, _, _ := lightNode(lightLoad)
		sum := summary{onlineSummary: onlineSummary{activeOnline: online}}
		if p.updateTrial(sched.Time(time.Hour), &h200Device, 9, &sum); p.trial.most != want {
			t.Errorf("%d online queues: %d newcomers are tried at a time, want %d", online, p.trial.most, want)
		}
	}
}

// TestNewcomersAreTriedSideBySide checks that light queues run side by side beside newcomers in a trial, also
// where queues take turns beside online work, unless the user asked for turns.
func TestNewcomersAreTriedSideBySide(t *testing.T) {
	for _, tt := range []struct {
		shared time.Duration // the parameter
		tried  bool
		want   bool
	}{
		{ownShared, true, true},
		{ownShared, false, false},
		{sched.MinSlice, true, false},
	} {
		p, v, states := lightNode(lightLoad, lightLoad)
		sum, set := summary{inRotation: 2, rotationClass: sched.Batch, onlineSummary: onlineSummary{activeOnline: 1}}, p.ownSetting()
		p.sharedSlice, set.sharedSlice = tt.shared, sched.MinSlice
		countLoads(v, states, &sum)
		p.watchLoads(v, states, &sum)
		p.newcomersTried = tt.tried
		if p.chooseSideBySide(v, states, &sum, &set); p.sharing != tt.want {
			t.Errorf("shared %v, newcomers tried %v: side by side %v, want %v", tt.shared, tt.tried, p.sharing, tt.want)
		}
	}
}
