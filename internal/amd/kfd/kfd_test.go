package kfd_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// wire sees a call as the driver does, and answers as it is told.
type wire struct {
	request uint32
	arg     []byte
	n       int
	err     error
	answer  func(arg []byte)
}

func (w *wire) Ioctl(request uint32, arg []byte) (int, error) {
	w.request, w.arg = request, append([]byte(nil), arg...)
	if w.answer != nil {
		w.answer(arg)
	}
	return w.n, w.err
}

// TestArguments holds every call's bytes against the header.
func TestArguments(t *testing.T) {
	w := &wire{}
	u32 := func(at int) uint32 { return le.Uint32(w.arg[at:]) }
	_, _ = kfd.EnableDebug(w, 77, kfd.MaskProcessRuntime, 5)
	if w.request != kfd.ReqDebugTrap || u32(0) != 77 || u32(4) != 0 || le.Uint64(w.arg[8:]) != 1<<47 || le.Uint64(w.arg[16:]) == 0 || u32(24) != 16 || u32(28) != 5 {
		t.Errorf("enable %x", w.arg)
	}
	_ = kfd.DisableDebug(w, 77)
	if u32(0) != 77 || u32(4) != 1 {
		t.Errorf("disable %x", w.arg)
	}
	w.n = 2
	_, _ = kfd.Suspend(w, 77, []uint32{1, 2}, 9)
	if u32(4) != 6 || le.Uint64(w.arg[8:]) != 0 || le.Uint64(w.arg[16:]) == 0 || u32(24) != 2 || u32(28) != 9 {
		t.Errorf("suspend %x", w.arg)
	}
	_, _ = kfd.Resume(w, 77, []uint32{1, 2})
	if u32(4) != 7 || le.Uint64(w.arg[8:]) == 0 || u32(16) != 2 || u32(20) != 0 || le.Uint64(w.arg[24:]) != 0 {
		t.Errorf("resume %x", w.arg)
	}
	_, _ = kfd.QueryEvent(w, 77, kfd.MaskProcessRuntime)
	if u32(4) != 11 || le.Uint64(w.arg[8:]) != 1<<47 {
		t.Errorf("query %x", w.arg)
	}
	_ = kfd.SendRuntimeEvent(w, 77, kfd.MaskProcessRuntime)
	if u32(4) != 2 || le.Uint64(w.arg[8:]) != 1<<47 {
		t.Errorf("send %x", w.arg)
	}
	_, _ = kfd.BatchUnmap(w, 77, []kfd.QueueKey{{GPU: 1, Queue: 2}, {GPU: 3, Queue: 4}}, 8)
	if w.request != kfd.ReqBatchUnmap || le.Uint64(w.arg[0:]) == 0 || u32(8) != 2 || u32(12) != 77 || u32(16) != 8 || u32(20) != 0 {
		t.Errorf("unmap %x", w.arg)
	}
	_, _ = kfd.RemapAll(w, 77)
	if w.request != kfd.ReqFastRemap || le.Uint64(w.arg[0:]) != 0 || u32(8) != 0 || u32(12) != 77 || u32(16) != 0 || u32(20) != 1 {
		t.Errorf("remap all %x", w.arg)
	}
	_, _ = kfd.SetReservation(w, 51545, kfd.Reservation{Slots: 3, Priority: 11})
	if w.request != kfd.ReqHQDReservation || u32(0) != 51545 || u32(4) != 3 || u32(8) != 11 || u32(12) != 0 {
		t.Errorf("reserve %x", w.arg)
	}
	_ = kfd.UpdateQueue(w, 3, 0x1000, 4096, 0, 7)
	if w.request != kfd.ReqUpdateQueue || le.Uint64(w.arg[0:]) != 0x1000 || u32(8) != 3 || u32(12) != 4096 || u32(16) != 0 || u32(20) != 7 {
		t.Errorf("update %x", w.arg)
	}
}

// TestErrno: every call looks at it, and names itself.
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
		"create":   func(f kfd.Ioctler) error { _, err := kfd.CreateQueue(f, kfd.NewQueue{}); return err },
		"destroy":  func(f kfd.Ioctler) error { return kfd.DestroyQueue(f, 1) },
		"update":   func(f kfd.Ioctler) error { return kfd.UpdateQueue(f, 1, 0, 0, 0, 0) },
		"runtime":  func(f kfd.Ioctler) error { return kfd.SetRuntime(f, true) },
		"unmap":    func(f kfd.Ioctler) error { _, err := kfd.BatchUnmap(f, 1, key, 0); return err },
		"remap":    func(f kfd.Ioctler) error { _, err := kfd.FastRemap(f, 1, key); return err },
		"all":      func(f kfd.Ioctler) error { _, err := kfd.RemapAll(f, 1); return err },
		"may":      func(f kfd.Ioctler) error { return kfd.MayUnmap(f, 1) },
		"reserve":  func(f kfd.Ioctler) error { _, err := kfd.SetReservation(f, 1, kfd.Reservation{}); return err },
		"ask":      func(f kfd.Ioctler) error { _, err := kfd.QueryReservation(f, 1); return err },
	} {
		if err := do(&wire{err: unix.ETIME}); !errors.Is(err, unix.ETIME) || err.Error() == unix.ETIME.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCounts: a count is no error, and a driver that contradicts itself is not
// believed.
func TestCounts(t *testing.T) {
	w := &wire{n: 3}
	if errs, err := kfd.Suspend(w, 1, []uint32{1, 2, 3}, 1); err != nil || errors.Join(errs...) != nil {
		t.Errorf("%v, %v", errs, err)
	}
	w.n = 2
	if _, err := kfd.Suspend(w, 1, []uint32{1, 2, 3}, 1); !errors.Is(err, kfd.ErrHardware) {
		t.Errorf("2 of 3 without an error: %v", err)
	}
	if _, err := kfd.BatchUnmap(w, 1, []kfd.QueueKey{{}}, 1); !errors.Is(err, kfd.ErrHardware) {
		t.Errorf("2 of 1: %v", err)
	}
	// A snapshot whose count or entry size is impossible.
	w.answer = func(arg []byte) { le.PutUint32(arg[28:], 128) }
	if _, err := kfd.Snapshot(w, 1, 0); err == nil {
		t.Error("entries of another size were read")
	}
	w.answer = func(arg []byte) { le.PutUint32(arg[24:], 1<<31) }
	if got, err := kfd.Snapshot(w, 1, 0); err != nil || len(got) != kfd.MaxQueues {
		t.Errorf("%d entries of 2^31, %v", len(got), err)
	}
}

// TestLimits: what is too much for a call is refused before it is made.
func TestLimits(t *testing.T) {
	w := &wire{}
	for _, n := range []int{0, kfd.MaxQueues + 1} {
		_, err1 := kfd.Suspend(w, 1, make([]uint32, n), 1)
		_, err2 := kfd.Resume(w, 1, make([]uint32, n))
		_, err3 := kfd.BatchUnmap(w, 1, make([]kfd.QueueKey, n), 1)
		_, err4 := kfd.FastRemap(w, 1, make([]kfd.QueueKey, n))
		if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
			t.Errorf("%d queues: %v, %v, %v, %v", n, err1, err2, err3, err4)
		}
	}
	if kfd.UpdateQueue(w, 1, 0, 0, 101, 0) == nil || kfd.UpdateQueue(w, 1, 0, 0, 0, 16) == nil {
		t.Error("a percentage or priority out of range")
	}
	if w.request != 0 {
		t.Error("the driver was called")
	}
}

// TestManyQueues: as many queues as a process can have, in one call, with what
// became of each.
func TestManyQueues(t *testing.T) {
	for _, patched := range []bool{false, true} {
		k := kfdtest.New(kfdtest.Config{Patched: patched})
		f := k.Open(os.Getpid())
		if err := kfd.SetRuntime(f, true); err != nil {
			t.Fatal(err)
		}
		var ids []uint32
		var keys []kfd.QueueKey
		for range kfd.MaxQueues {
			id, err := kfd.CreateQueue(f, kfd.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfd.TypeComputeAQL, Ring: 4096, RingSize: 4096})
			if err != nil {
				t.Fatal(err)
			}
			ids, keys = append(ids, id), append(keys, kfd.QueueKey{GPU: kfdtest.MI300X.GPU, Queue: id})
		}
		if _, err := kfd.CreateQueue(f, kfd.NewQueue{GPU: kfdtest.MI300X.GPU}); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("the 1025th queue: %v", err)
		}
		const gone = 512
		if err := kfd.DestroyQueue(f, ids[gone]); err != nil {
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
			there, err2 := kfd.Snapshot(f, os.Getpid(), kfd.MaskQueueNew)
			if err2 != nil || len(there) != kfd.MaxQueues-1 || there[0].Exceptions != kfd.MaskQueueNew || there[0].Ring != 4096 || !there[0].Type.IsCompute() {
				t.Fatal(len(there), err2)
			}
			before = k.Updates(kfdtest.MI300X.GPU)
			errs, err = kfd.Suspend(f, os.Getpid(), ids, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, err := range errs {
			if (err != nil) != (i == gone) {
				t.Errorf("patched %v, queue %d: %v", patched, i, err)
			}
		}
		if patched && !errors.Is(errs[gone], unix.ENOENT) || !patched && !errors.Is(errs[gone], kfd.ErrInvalidQueue) {
			t.Errorf("the queue that is gone: %v", errs[gone])
		}
		if n := k.Updates(kfdtest.MI300X.GPU) - before; n != 1 {
			t.Errorf("patched %v: %d updates of the runlist", patched, n)
		}
	}
}

// TestGates: what a driver offers, and why not.
func TestGates(t *testing.T) {
	for _, tt := range []struct {
		name         string
		cfg          kfdtest.Config
		debug, batch bool
	}{
		{"6.12", kfdtest.Config{}, true, false},
		{"6.12, patched", kfdtest.Config{Patched: true}, true, true},
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
			t.Errorf("%s: %+v", tt.name, f)
		}
		for _, err := range []error{f.Debug, f.Batch} {
			if err != nil && !errors.Is(err, kfd.ErrNotSupported) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		var version *kfd.VersionError
		if errors.As(f.Debug, &version) && version.Have != f.Version {
			t.Errorf("%s: %v", tt.name, version)
		}
	}
}

func TestGrace(t *testing.T) {
	for _, tt := range []struct {
		d     time.Duration
		clock uint32
		want  kfd.Grace
	}{
		{0, 2000, 1},
		{-time.Second, 2000, 1},
		{10 * time.Microsecond, 2000, 20},
		{100 * time.Microsecond, 2000, 200},
		{128 * time.Microsecond, 2000, 255}, // and not 0, which the field's 8 bits would make of it
		{time.Hour, 4294967295, 255},
		{time.Millisecond, 0, kfd.DefaultGrace},
	} {
		if got := kfd.GraceOf(tt.d, tt.clock); got != tt.want {
			t.Errorf("%v at %d MHz: %d, want %d", tt.d, tt.clock, got, tt.want)
		}
	}
}
