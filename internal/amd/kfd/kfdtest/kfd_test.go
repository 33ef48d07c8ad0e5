package kfdtest_test

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"golang.org/x/sys/unix"
)

const (
	controller = 10
	program    = 20
)

// newDriver returns a driver, a world with a program that has one queue, and the file of a
// controller.
func newDriver(t *testing.T, patched bool) (*kfdtest.KFD, *kfdtest.World, *kfdtest.File, kfdtest.QueueID) {
	t.Helper()
	w := kfdtest.NewWorld()
	w.Start(controller, 0)
	w.Start(program, 1000)
	k := kfdtest.New(kfdtest.Config{Patched: patched, Host: w})
	f := k.Open(program)
	check(t, kfdtest.SetRuntime(f, true))
	id, err := kfdtest.CreateQueue(f, kfdtest.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfdtest.TypeComputeAQL, Ring: 1 << 20, RingSize: 4096, Priority: 7})
	check(t, err)
	return k, w, k.Open(controller), kfdtest.QueueID{PID: program, Queue: id}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func keys(id kfdtest.QueueID) []kfd.QueueKey {
	return []kfd.QueueKey{{GPU: kfdtest.MI300X.GPU, Queue: id.Queue}}
}

// TestUnmapIsUndone checks that queues are remapped when the controller dies, when it
// closes its file, and by RemapAll.
func TestUnmapIsUndone(t *testing.T) {
	for name, end := range map[string]func(*kfdtest.World, *kfdtest.File){
		"death": func(w *kfdtest.World, _ *kfdtest.File) { w.Kill(controller) },
		"close": func(_ *kfdtest.World, f *kfdtest.File) { _ = f.Close() },
		"all":   func(_ *kfdtest.World, f *kfdtest.File) { _ = kfd.RemapAll(f, program) },
	} {
		k, w, f, id := newDriver(t, true)
		_, err := kfd.BatchUnmap(f, program, keys(id), kfd.DefaultGrace)
		check(t, err)
		if name != "all" {
			check(t, kfdtest.Reserve(f, kfdtest.MI300X.GPU, 2, 8))
		}
		if k.Active(id) {
			t.Fatalf("%s: the unmapped queue runs", name)
		}
		end(w, f)
		drivertest.Eventually(t, "all undone", func() bool { return k.Left() == "" })
		if !k.Active(id) {
			t.Errorf("%s: the queue does not run", name)
		}
	}
}

// TestUnmapAndSuspendAreIndependent checks that a queue runs only when it is neither
// unmapped nor suspended.
func TestUnmapAndSuspendAreIndependent(t *testing.T) {
	k, w, f, id := newDriver(t, true)
	runtime.LockOSThread() // tracing belongs to a thread
	defer runtime.UnlockOSThread()
	w.Trace(unix.Gettid(), program)
	r, events, err := os.Pipe()
	check(t, err)
	defer r.Close()
	defer events.Close()
	ready, err := kfd.EnableDebug(f, program, 0, int(events.Fd()))
	if err != nil || !ready {
		t.Fatal(ready, err)
	}
	_, err = kfd.Snapshot(f, program, kfd.MaskQueueNew)
	check(t, err)
	ids := []uint32{id.Queue}
	step := func(what string, errs []error, err error, runs bool) {
		t.Helper()
		if err := errors.Join(append(errs, err)...); err != nil || k.Active(id) != runs {
			t.Errorf("%s: got active %v, %v; want %v", what, k.Active(id), err, runs)
		}
	}
	errs, err := kfd.Suspend(f, program, ids, 1)
	step("suspended", errs, err, false)
	errs, err = kfd.BatchUnmap(f, program, keys(id), 1)
	step("unmapped as well", errs, err, false)
	errs, err = kfd.Resume(f, program, ids)
	step("resumed", errs, err, false)
	errs, err = kfd.FastRemap(f, program, keys(id))
	step("remapped", errs, err, true)
	errs, err = kfd.BatchUnmap(f, program, keys(id), 1)
	step("unmapped", errs, err, false)
	step("the session ends", nil, kfd.DisableDebug(f, program), false)
	errs, err = kfd.FastRemap(f, program, keys(id))
	step("remapped again", errs, err, true)
}

// TestUpdateQueue checks that a process can stop and start its own queue.
func TestUpdateQueue(t *testing.T) {
	k, _, _, id := newDriver(t, false)
	f := k.Open(program)
	check(t, kfdtest.UpdateQueue(f, id.Queue, 1<<20, 4096, 0, 7))
	if k.Active(id) {
		t.Error("the queue runs at 0 %")
	}
	check(t, kfdtest.UpdateQueue(f, id.Queue, 1<<20, 4096, 100, 11))
	if !k.Active(id) {
		t.Error("the queue does not run at 100 %")
	}
}

// TestUnknownRequests checks that the double refuses requests that it does not implement.
func TestUnknownRequests(t *testing.T) {
	k, _, f, _ := newDriver(t, false)
	arg := make([]byte, 64)
	if _, err := f.Ioctl(0xc0184b20, arg); !errors.Is(err, unix.ENOSYS) { // SVM
		t.Errorf("SVM: got %v, want ENOSYS", err)
	}
	if _, err := f.Ioctl(kfd.ReqDebugTrap, arg[:8]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("half an argument: got %v, want EFAULT", err)
	}
	check(t, f.Close())
	if _, err := f.Ioctl(kfd.ReqGetVersion, arg); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed file: got %v, want EBADF", err)
	}
	if k.Left() != "" {
		t.Error(k.Left())
	}
}
