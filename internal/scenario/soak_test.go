package scenario

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestAMDSoak runs the hour of scenarios/amd-soak.yaml. No rule may be broken, every
// client must be answered, queues must be destroyed and made again, and the slots
// must be in use for more than 80% of the time.
func TestAMDSoak(t *testing.T) {
	s, err := Load("../../scenarios/amd-soak.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Length != time.Hour {
		t.Errorf("got length %v, want 1h", s.Config.Length)
	}
	cfg, _, err := s.under(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		cfg.Length = 2 * time.Minute
	}
	r := sim.New(cfg).Run()
	for _, v := range r.Violations {
		t.Errorf("seed %d: %s", cfg.Seed, v)
	}
	if r.Overruled != sched.NoMistake {
		t.Errorf("the policy was overruled because it %v", r.Overruled)
	}
	for _, d := range r.Devices {
		t.Logf("%s: %.1f%% of the time of %d slots used, %v stalled, %d updates", d.ID, 100*d.Utilisation(), d.Slots, d.Stalled, d.Updates)
		if d.Span < cfg.Length || d.Utilisation() <= 0.8 {
			t.Errorf("%s: got %.1f%% of the slots' time used in %v, want more than 80%%", d.ID, 100*d.Utilisation(), d.Span)
		}
	}
	again := 0
	for _, c := range r.Clients {
		if c.Requests == 0 || c.OpenLoop && c.Unfinished > 2 {
			t.Errorf("%s: got %d requests answered and %d unanswered", c.Name, c.Requests, c.Unfinished)
		}
		if int(c.Queue) > len(r.Clients) {
			again++
		}
	}
	if again == 0 {
		t.Error("got no queue that was destroyed and made again, want some")
	}
}
