package amd

import (
	"errors"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// TestBundleThatCannotBeStartedAgainIsPartial: one queue of a bundle cannot be stopped, and the
// other, which is stopped, cannot be started. A later start of the bundle starts it.
func TestBundleThatCannotBeStartedAgainIsPartial(t *testing.T) {
	m := kfdtest.NewMachine(t, kfdtest.Config{Patched: true})
	p := m.StartProcess(2)
	d, err := open(Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys)})
	check(t, err)
	b := newBundle(d.gpus[0])
	ids := []uint32{p.Queues[0].Queue, p.Queues[1].Queue}
	q, err := b.attach(ids, target{pid: p.PID}, retry{})
	check(t, err)
	b.parts[ids[1]].methods = nil
	m.Inject(kfdtest.Request(kfd.ReqFastRemap), kfdtest.Fault{Errno: unix.EIO})
	if err := hal.Stop(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Partial || p.Running() != 1 {
		t.Errorf("got %v with %d running queues, want %v and 1", err, p.Running(), hal.ErrPartial)
	}
	m.Inject(kfdtest.Request(kfd.ReqFastRemap), kfdtest.Fault{})
	check(t, hal.Start(q, sched.LevelInterrupt))
	if p.Running() != 2 {
		t.Errorf("after a start: got %d running queues, want 2", p.Running())
	}
	check(t, q.Close())
	check(t, d.close())
}

// TestBundleStopsAllOrNone checks that a bundle with a queue that cannot be stopped runs.
func TestBundleStopsAllOrNone(t *testing.T) {
	for _, patched := range []bool{false, true} {
		m := kfdtest.NewMachine(t, kfdtest.Config{Patched: patched})
		p := m.StartProcess(2)
		ids := []uint32{p.Queues[0].Queue, p.Queues[1].Queue}
		running := func(want int) {
			t.Helper()
			if got := p.Running(); got != want {
				t.Errorf("patched %v: got %d running queues, want %d", patched, got, want)
			}
		}
		d, err := open(Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys)})
		check(t, err)
		b := newBundle(d.gpus[0])
		q, err := b.attach(ids, target{pid: p.PID}, retry{})
		check(t, err)
		check(t, hal.Stop(q, sched.LevelInterrupt))
		running(0)
		check(t, hal.Start(q, sched.LevelInterrupt))
		running(2)
		part := b.parts[ids[1]]
		methods := part.methods
		part.methods = nil
		if err := hal.Stop(q, sched.LevelInterrupt); !errors.Is(err, hal.ErrNotSupported) {
			t.Errorf("patched %v: got %v, want %v", patched, err, hal.ErrNotSupported)
		}
		running(2)
		part.methods = methods
		check(t, hal.Stop(q, sched.LevelInterrupt))
		running(0)
		check(t, q.Close())
		running(2)
		if again, err := b.attach(ids, target{pid: p.PID}, retry{}); err != nil || hal.Abilities(again) != 0 {
			t.Errorf("patched %v, closed bundle: got %v, %v; want no abilities", patched, hal.Abilities(again), err)
		}
		check(t, d.close())
		drivertest.Eventually(t, "nothing left", func() bool { return m.Left() == "" })
	}
}
