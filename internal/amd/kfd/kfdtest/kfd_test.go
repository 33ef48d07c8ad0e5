package kfdtest_test

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"golang.org/x/sys/unix"
)

const (
	controller = 10
	program    = 20
)

// bed is a driver with a program that has one queue, and a controller.
func bed(t *testing.T, patched bool) (*kfdtest.KFD, *kfdtest.World, *kfdtest.File, kfdtest.QueueID) {
	t.Helper()
	w := kfdtest.NewWorld()
	w.Start(controller, 0)
	w.Start(program, 1000)
	k := kfdtest.New(kfdtest.Config{Patched: patched, Host: w})
	f := k.Open(program)
	check(t, kfd.SetRuntime(f, true))
	id, err := kfd.CreateQueue(f, kfd.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfd.TypeComputeAQL, Ring: 1 << 20, RingSize: 4096, Priority: 7})
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

// TestLettingGo: the death of who unmapped puts back, descriptors left open or not,
// and so does closing the file.
func TestLettingGo(t *testing.T) {
	for name, end := range map[string]func(*kfdtest.World, *kfdtest.File){
		"death": func(w *kfdtest.World, _ *kfdtest.File) { w.Kill(controller) },
		"close": func(_ *kfdtest.World, f *kfdtest.File) { _ = f.Close() },
		"all":   func(_ *kfdtest.World, f *kfdtest.File) { _, _ = kfd.RemapAll(f, program) },
	} {
		k, w, f, id := bed(t, true)
		_, err := kfd.BatchUnmap(f, program, keys(id), kfd.DefaultGrace)
		check(t, err)
		if name != "all" {
			_, err = kfd.SetReservation(f, kfdtest.MI300X.GPU, kfd.Reservation{Slots: 2, Priority: 8})
			check(t, err)
		}
		if k.Active(id) {
			t.Fatalf("%s: it runs", name)
		}
		end(w, f)
		eventually(t, k.Left)
		if !k.Active(id) {
			t.Errorf("%s: it does not run", name)
		}
	}
}

// TestIndependent: what the patch stopped and what a debugger suspended are two
// things, and a queue runs when neither is so.
func TestIndependent(t *testing.T) {
	k, w, f, id := bed(t, true)
	runtime.LockOSThread() // who traces is a thread
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
			t.Errorf("%s: runs %v, %v", what, k.Active(id), err)
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

// TestUpdateQueue: a process takes its own queue off and puts it back.
func TestUpdateQueue(t *testing.T) {
	k, _, _, id := bed(t, false)
	f := k.Open(program)
	check(t, kfd.UpdateQueue(f, id.Queue, 1<<20, 4096, 0, 7))
	if k.Active(id) {
		t.Error("at 0 % it runs")
	}
	check(t, kfd.UpdateQueue(f, id.Queue, 1<<20, 4096, 100, 11))
	if !k.Active(id) {
		t.Error("at 100 % it does not run")
	}
}

// TestUnknown: what the double does not know it does not make up.
func TestUnknown(t *testing.T) {
	k, _, f, _ := bed(t, false)
	arg := make([]byte, 64)
	if _, err := f.Ioctl(0xc0184b20, arg); !errors.Is(err, unix.ENOSYS) { // SVM
		t.Error(err)
	}
	if _, err := f.Ioctl(kfd.ReqDebugTrap, arg[:8]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("half an argument: %v", err)
	}
	check(t, f.Close())
	if _, err := f.Ioctl(kfd.ReqGetVersion, arg); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is closed: %v", err)
	}
	if k.Left() != "" {
		t.Error(k.Left())
	}
}
