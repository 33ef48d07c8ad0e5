package kfd_test

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// recorder records the bytes of a call and returns what the test sets.
type recorder struct {
	request uint32
	arg     []byte
	n       int
	err     error
	answer  func(arg []byte)
}

func (w *recorder) Ioctl(request uint32, arg []byte) (int, error) {
	w.request, w.arg = request, append([]byte(nil), arg...)
	if w.answer != nil {
		w.answer(arg)
	}
	return w.n, w.err
}

// TestArguments checks the bytes of every call against the header.
func TestArguments(t *testing.T) {
	w := &recorder{}
	u32 := func(at int) uint32 { return le.Uint32(w.arg[at:]) }
	_, _ = kfd.EnableDebug(w, 77, kfd.MaskProcessRuntime, 5)
	if w.request != kfd.ReqDebugTrap || u32(0) != 77 || u32(4) != 0 || le.Uint64(w.arg[8:]) != 1<<47 || le.Uint64(w.arg[16:]) == 0 || u32(24) != 16 || u32(28) != 5 {
		t.Errorf("enable: got %x", w.arg)
	}
	_ = kfd.DisableDebug(w, 77)
	if u32(0) != 77 || u32(4) != 1 {
		t.Errorf("disable: got %x", w.arg)
	}
	w.n = 2
	_, _ = kfd.Suspend(w, 77, []uint32{1, 2}, 9)
	if u32(4) != 6 || le.Uint64(w.arg[8:]) != 0 || le.Uint64(w.arg[16:]) == 0 || u32(24) != 2 || u32(28) != 9 {
		t.Errorf("suspend: got %x", w.arg)
	}
	_, _ = kfd.Resume(w, 77, []uint32{1, 2})
	if u32(4) != 7 || le.Uint64(w.arg[8:]) == 0 || u32(16) != 2 || u32(20) != 0 || le.Uint64(w.arg[24:]) != 0 {
		t.Errorf("resume: got %x", w.arg)
	}
	_, _ = kfd.QueryEvent(w, 77, kfd.MaskProcessRuntime)
	if u32(4) != 11 || le.Uint64(w.arg[8:]) != 1<<47 {
		t.Errorf("query: got %x", w.arg)
	}
	_ = kfd.SendRuntimeEvent(w, 77, kfd.MaskProcessRuntime)
	if u32(4) != 2 || le.Uint64(w.arg[8:]) != 1<<47 {
		t.Errorf("send: got %x", w.arg)
	}
	_, _ = kfd.BatchUnmap(w, 77, []kfd.QueueKey{{GPU: 1, Queue: 2}, {GPU: 3, Queue: 4}}, 8)
	if w.request != kfd.ReqBatchUnmap || le.Uint64(w.arg[0:]) == 0 || u32(8) != 2 || u32(12) != 77 || u32(16) != 8 || u32(20) != 0 {
		t.Errorf("unmap: got %x", w.arg)
	}
	_ = kfd.RemapAll(w, 77)
	if w.request != kfd.ReqFastRemap || le.Uint64(w.arg[0:]) != 0 || u32(8) != 0 || u32(12) != 77 || u32(16) != 0 || u32(20) != 1 {
		t.Errorf("remap all: got %x", w.arg)
	}
	_, _ = kfd.ActiveSlots(w, 51545)
	if w.request != kfd.ReqHQDReservation || u32(0) != 51545 || u32(4) != 0 || u32(8) != 0 || u32(12) != 1 {
		t.Errorf("query slots: got %x", w.arg)
	}
}

// TestErrno checks that every call returns the errno, with a description.
func TestErrno(t *testing.T) {
	one := []uint32{1}
	key := []kfd.QueueKey{{GPU: 1, Queue: 1}}
	for name, do := range map[string]func(kfd.Ioctler) error{
		"probe":    func(f kfd.Ioctler) error { _, err := kfd.Probe(f); return err },
		"enable":   func(f kfd.Ioctler) error { _, err := kfd.EnableDebug(f, 1, 0, 0); return err },
		"disable":  func(f kfd.Ioctler) error { return kfd.DisableDebug(f, 1) },
		"suspend":  func(f kfd.Ioctler) error { _, err := kfd.Suspend(f, 1, one, 1); return err },
		"resume":   func(f kfd.Ioctler) error { _, err := kfd.Resume(f, 1, one); return err },
		"snapshot": func(f kfd.Ioctler) error { _, err := kfd.Snapshot(f, 1, 0); return err },
		"query":    func(f kfd.Ioctler) error { _, err := kfd.QueryEvent(f, 1, 0); return err },
		"send":     func(f kfd.Ioctler) error { return kfd.SendRuntimeEvent(f, 1, 0) },
		"unmap":    func(f kfd.Ioctler) error { _, err := kfd.BatchUnmap(f, 1, key, 0); return err },
		"remap":    func(f kfd.Ioctler) error { _, err := kfd.FastRemap(f, 1, key); return err },
		"all":      func(f kfd.Ioctler) error { return kfd.RemapAll(f, 1) },
		"may":      func(f kfd.Ioctler) error { return kfd.MayUnmap(f, 1) },
		"slots":    func(f kfd.Ioctler) error { _, err := kfd.ActiveSlots(f, 1); return err },
	} {
		if err := do(&recorder{err: unix.ETIME}); !errors.Is(err, unix.ETIME) || err.Error() == unix.ETIME.Error() {
			t.Errorf("%s: got %v, want a description and ETIME", name, err)
		}
	}
}

// TestCounts checks that a returned count is not an error, and that contradictory answers
// of the driver are.
func TestCounts(t *testing.T) {
	w := &recorder{n: 3}
	if errs, err := kfd.Suspend(w, 1, []uint32{1, 2, 3}, 1); err != nil || errors.Join(errs...) != nil {
		t.Errorf("3 of 3: got %v, %v; want no error", errs, err)
	}
	w.n = 2
	if _, err := kfd.Suspend(w, 1, []uint32{1, 2, 3}, 1); !errors.Is(err, kfd.ErrHardware) {
		t.Errorf("2 of 3: got %v, want %v", err, kfd.ErrHardware)
	}
	if _, err := kfd.BatchUnmap(w, 1, []kfd.QueueKey{{}}, 1); !errors.Is(err, kfd.ErrHardware) {
		t.Errorf("2 of 1: got %v, want %v", err, kfd.ErrHardware)
	}
	// A snapshot with an impossible entry size or count.
	w.answer = func(arg []byte) { le.PutUint32(arg[28:], 128) }
	if _, err := kfd.Snapshot(w, 1, 0); err == nil {
		t.Error("entries of another size were accepted")
	}
	w.answer = func(arg []byte) { le.PutUint32(arg[24:], 1<<31) }
	if got, err := kfd.Snapshot(w, 1, 0); err != nil || len(got) != kfd.MaxQueues {
		t.Errorf("count 2^31: got %d entries, %v; want %d", len(got), err, kfd.MaxQueues)
	}
}

// TestLimits checks that a call with too many queues is refused before it is made.
func TestLimits(t *testing.T) {
	w := &recorder{}
	for _, n := range []int{0, kfd.MaxQueues + 1} {
		_, err1 := kfd.Suspend(w, 1, make([]uint32, n), 1)
		_, err2 := kfd.Resume(w, 1, make([]uint32, n))
		_, err3 := kfd.BatchUnmap(w, 1, make([]kfd.QueueKey, n), 1)
		_, err4 := kfd.FastRemap(w, 1, make([]kfd.QueueKey, n))
		if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
			t.Errorf("%d queues: got %v, %v, %v, %v; want errors", n, err1, err2, err3, err4)
		}
	}
	if w.request != 0 {
		t.Error("the driver was called")
	}
}

// TestMaxQueues stops as many queues as a process can have in one call, one of which is
// gone.
func TestMaxQueues(t *testing.T) {
	for _, patched := range []bool{false, true} {
		k := kfdtest.New(kfdtest.Config{Patched: patched})
		f := k.Open(os.Getpid())
		if err := kfdtest.SetRuntime(f, true); err != nil {
			t.Fatal(err)
		}
		var ids []uint32
		var keys []kfd.QueueKey
		for range kfd.MaxQueues {
			id, err := kfdtest.CreateQueue(f, kfdtest.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfdtest.TypeComputeAQL, Ring: 4096, RingSize: 4096})
			if err != nil {
				t.Fatal(err)
			}
			ids, keys = append(ids, id), append(keys, kfd.QueueKey{GPU: kfdtest.MI300X.GPU, Queue: id})
		}
		if _, err := kfdtest.CreateQueue(f, kfdtest.NewQueue{GPU: kfdtest.MI300X.GPU}); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("queue 1025: got %v, want ENOMEM", err)
		}
		const gone = 512
		if err := kfdtest.DestroyQueue(f, ids[gone]); err != nil {
			t.Fatal(err)
		}
		var errs []error
		var err error
		before := k.Updates(kfdtest.MI300X.GPU)
		if patched {
			errs, err = kfd.BatchUnmap(f, 0, keys, 1)
		} else {
			r, w, _ := os.Pipe()
			defer r.Close()
			defer w.Close()
			if ready, err := kfd.EnableDebug(f, os.Getpid(), 0, int(w.Fd())); err != nil || !ready {
				t.Fatal(ready, err)
			}
			var listed []uint32
			listed, err = kfd.Snapshot(f, os.Getpid(), kfd.MaskQueueNew)
			if err != nil || !slices.Equal(listed, slices.Delete(slices.Clone(ids), gone, gone+1)) {
				t.Fatalf("snapshot: got %d queues, %v; want all but the destroyed one", len(listed), err)
			}
			before = k.Updates(kfdtest.MI300X.GPU)
			errs, err = kfd.Suspend(f, os.Getpid(), ids, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, err := range errs {
			if (err != nil) != (i == gone) {
				t.Errorf("patched %v, queue %d: got %v", patched, i, err)
			}
		}
		if patched && !errors.Is(errs[gone], unix.ENOENT) || !patched && !errors.Is(errs[gone], kfd.ErrInvalidQueue) {
			t.Errorf("patched %v, destroyed queue: got %v", patched, errs[gone])
		}
		if n := k.Updates(kfdtest.MI300X.GPU) - before; n != 1 {
			t.Errorf("patched %v: got %d runlist updates, want 1", patched, n)
		}
	}
}

// TestProbe checks which features are found on which drivers.
func TestProbe(t *testing.T) {
	for _, tt := range []struct {
		name         string
		cfg          kfdtest.Config
		debug, batch bool
	}{
		{"6.12", kfdtest.Config{}, true, false},
		{"6.12, patched", kfdtest.Config{Patched: true}, true, true},
		{"amdgpu-dkms", kfdtest.Config{ROCm: true}, true, false},
		{"amdgpu-dkms, patched", kfdtest.Config{ROCm: true, Patched: true}, true, true},
		{"6.5", kfdtest.Config{Version: kfd.Version{Major: 1, Minor: 13}}, true, false},
		{"6.1", kfdtest.Config{Version: kfd.Version{Major: 1, Minor: 11}}, false, false},
		{"another major", kfdtest.Config{Version: kfd.Version{Major: 2, Minor: 20}, Patched: true}, false, false},
		{"no hardware scheduler", kfdtest.Config{Patched: true, NoHWS: true}, true, false},
	} {
		f, err := kfd.Probe(kfdtest.New(tt.cfg).Open(os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		if (f.Debug == nil) != tt.debug || (f.Batch == nil) != tt.batch {
			t.Errorf("%s: got %+v, want debug %v, batch %v", tt.name, f, tt.debug, tt.batch)
		}
		if stock := !tt.batch && !tt.cfg.NoHWS && tt.debug; stock && !strings.Contains(f.Batch.Error(), "stock driver") {
			t.Errorf("%s: got %q; want a stock driver", tt.name, f.Batch)
		}
	}
}
