package scenario

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestAMDSoak lives the hour of scenarios/amd-soak.yaml: nothing goes wrong,
// every request is answered, queues have come and gone, and work went on in more
// than 80 % of the slots' time.
func TestAMDSoak(t *testing.T) {
	s, err := Load("../../scenarios/amd-soak.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Length != time.Hour {
		t.Errorf("it lasts %v", s.Config.Length)
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
		t.Errorf("the policy was overruled for %v", r.Overruled)
	}
	for _, d := range r.Devices {
		t.Logf("%s: %.1f %% of the time of %d slots used, %v stalled, %d updates", d.ID, 100*d.Utilisation(), d.Slots, d.Stalled, d.Updates)
		if d.Span < cfg.Length || d.Utilisation() <= 0.8 {
			t.Errorf("%s: %.1f %% of the slots' time used in %v", d.ID, 100*d.Utilisation(), d.Span)
		}
	}
	reborn := 0
	for _, c := range r.Clients {
		if c.Requests == 0 || c.OpenLoop && c.Unfinished > 2 {
			t.Errorf("%s: %d requests answered, %d not", c.Name, c.Requests, c.Unfinished)
		}
		if int(c.Queue) > len(r.Clients) {
			reborn++
		}
	}
	if reborn == 0 {
		t.Error("no queue was ever destroyed and made again")
	}
}
