package amd

import (
	"errors"
	"os"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// TestBundleStopsAllOrNone checks that a bundle with a queue that cannot be stopped runs.
func TestBundleStopsAllOrNone(t *testing.T) {
	for _, patched := range []bool{false, true} {
		sys := t.TempDir()
		k := kfdtest.New(kfdtest.Config{Patched: patched, Sys: sys})
		path := kfdtest.Mounted(t, k).Path
		p := kfdtest.Start(t, os.Getuid())
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check(p.Open(path))
		check(kfd.SetRuntime(p, true))
		var ids []uint32
		for range 2 {
			id, err := kfd.CreateQueue(p, kfd.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfd.TypeComputeAQL, Ring: 1 << 30, RingSize: 4096})
			check(err)
			ids = append(ids, id)
		}
		running := func(want int) {
			t.Helper()
			got := 0
			for _, id := range ids {
				if k.Active(kfdtest.QueueID{PID: p.PID, Queue: id}) {
					got++
				}
			}
			if got != want {
				t.Errorf("patched %v: got %d running queues, want %d", patched, got, want)
			}
		}
		driver, err := Open(Config{Dev: path, Sys: kfd.Sysfs(sys)})
		check(err)
		b := newBundle(&gpu{driver.Devices()[0]})
		q, err := b.attach(ids, Target{PID: p.PID}, retry{})
		check(err)
		check(hal.Stop(q, sched.LevelInterrupt))
		running(0)
		check(hal.Start(q, sched.LevelInterrupt))
		running(2)
		part := b.parts[ids[1]]
		b.parts[ids[1]] = struct{ hal.Queue }{part} // it cannot be interrupted
		if err := hal.Stop(q, sched.LevelInterrupt); !errors.Is(err, hal.ErrNotSupported) {
			t.Errorf("patched %v: got %v, want %v", patched, err, hal.ErrNotSupported)
		}
		running(2)
		b.parts[ids[1]] = part
		check(hal.Stop(q, sched.LevelInterrupt))
		running(0)
		check(q.Close())
		running(2)
		if again, err := b.attach(ids, Target{PID: p.PID}, retry{}); err != nil || hal.Abilities(again) != 0 {
			t.Errorf("patched %v: a closed bundle: got %v, %v; want no abilities", patched, hal.Abilities(again), err)
		}
		check(driver.Close())
		if left := k.Left(); left != "" {
			t.Errorf("patched %v: got %q, want nothing left", patched, left)
		}
	}
}
