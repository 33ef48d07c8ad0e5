package amd

import (
	"errors"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
)

// TestLab stops and starts the queues of a process with each method, in one call and one
// by one, and counts the slots.
func TestLab(t *testing.T) {
	for _, patched := range []bool{false, true} {
		m := kfdtest.NewMachine(t, kfdtest.Config{Patched: patched})
		p := m.StartProcess(3)
		cfg := Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys)}
		for _, method := range []string{"batch", "debug"} {
			l, err := OpenLab(cfg, method)
			if method == "batch" && !patched {
				if !errors.Is(err, hal.ErrNotSupported) {
					t.Errorf("batch on a stock driver: got error %v, want hal.ErrNotSupported", err)
				}
				continue
			}
			check(t, err)
			q, err := l.Attach(p.PID)
			check(t, err)
			if q.Len() != 3 {
				t.Errorf("%s: got %d queues, want 3", method, q.Len())
			}
			for name, pair := range map[string][2]func() error{"together": {q.Stop, q.Start}, "each": {q.StopEach, q.StartEach}} {
				check(t, pair[0]())
				active, slots, counted, err := l.Slots()
				check(t, err)
				want := 3 // a stock driver does not count: stopped queues are listed as well
				if patched {
					want = 0
				}
				if p.Running() != 0 || active != want || slots != 24 || counted != patched {
					t.Errorf("%s, %s, stopped: got %d running, %d of %d slots, counted %v; want 0, %d of 24, %v", method, name, p.Running(), active, slots, counted, want, patched)
				}
				check(t, pair[1]())
				if p.Running() != 3 {
					t.Errorf("%s, %s, started: got %d running, want 3", method, name, p.Running())
				}
			}
			check(t, q.Stop())
			check(t, errors.Join(q.Close(), l.Close()))
			if p.Running() != 3 {
				t.Errorf("%s, closed: got %d running, want 3", method, p.Running())
			}
			drivertest.Eventually(t, "nothing left", func() bool { return m.Left() == "" })
		}
	}
}
