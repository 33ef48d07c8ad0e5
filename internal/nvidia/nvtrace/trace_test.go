package nvtrace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// The order of calls that works on an H200.
var (
	openSteps = []string{
		"open", "alloc 0041", "control 00000201", "control 00000205", "alloc 0080", "alloc 2080",
		"alloc 90ce", "open", "map", "mmap", "alloc 90ce", "open", "map", "mmap", "alloc 90cd",
		"control 20801238", "control 20800403", "control 90cd0101",
	}
	closeSteps = []string{
		"control 90cd0101", "free 90cd", "unmap", "free 90ce", "unmap", "free 90ce", "free 0041",
	}
)

func TestOpenReadClose(t *testing.T) {
	rm := newFake(t)
	tr, err := rm.start()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rm.steps, openSteps) {
		t.Errorf("calls of Open: got\n%q, want\n%q", rm.steps, openSteps)
	}
	if tr.Started() != rm.now || !tr.AllUsers() || tr.buffer.count != 65536 {
		t.Errorf("got started %d, all users %v, %d records", tr.Started(), tr.AllUsers(), tr.buffer.count)
	}
	rm.now += 1000
	if now, err := tr.Clock(); now != rm.now || err != nil {
		t.Errorf("Clock: got %d, %v; want %d", now, err, rm.now)
	}
	if got, err := tr.Read(); len(got) != 0 || err != nil {
		t.Errorf("Read without switches: got %v, %v", got, err)
	}
	rm.switches(7, 10, rm.now+1)
	rm.switches(6, 11, rm.now+2)
	rm.switches(1, 11, rm.now+3) // a request, which a stock driver does not report
	rm.switches(3, PIDKernel, rm.now+4)
	rm.switches(5, PIDHidden, -1)
	rm.steps = nil
	want := []Switch{
		{PID: 10, At: rm.now + 1, Seq: 0, Context: 0x100a},
		{PID: 11, On: true, At: rm.now + 2, Seq: 1, Context: 0x100b},
		{PID: PIDKernel, At: rm.now + 4, Seq: 2, Context: 0xfff},
		{PID: PIDHidden, On: true, At: 0, Seq: 3, Context: 0x1000},
	}
	if got, err := tr.Read(); !slices.Equal(got, want) || err != nil {
		t.Errorf("Read: got %+v, %v; want %+v", got, err, want)
	}
	if want := []string{"control 90cd0104", "control 90cd0102"}; !slices.Equal(rm.steps, want) {
		t.Errorf("calls of Read: got %q, want %q", rm.steps, want)
	}
	if n := tr.Dropped(); n != 0 {
		t.Errorf("dropped: got %d, want 0", n)
	}
	rm.steps = nil
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(rm.steps, closeSteps) {
		t.Errorf("calls of Close: got\n%q, want\n%q", rm.steps, closeSteps)
	}
	if left := rm.leaks(); left != "" {
		t.Errorf("left behind: %s", left)
	}
	if err := tr.Close(); err != nil {
		t.Errorf("second Close: got %v", err)
	}
	if _, err := tr.Read(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Read after Close: got %v, want fs.ErrClosed", err)
	}
	if _, err := tr.Clock(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Clock after Close: got %v, want fs.ErrClosed", err)
	}
}

// TestFailureAtEachStep checks that a failure of any call leaves nothing behind, also where
// Open continues without the call.
func TestFailureAtEachStep(t *testing.T) {
	steps := len(openSteps) + 2 + len(closeSteps) // with one Clock and one Read between
	for _, failure := range []error{nvrm.ErrNoMemory, nvrm.ErrInsufficientPermissions, nvrm.ErrNotSupported, unix.EINVAL, unix.ENOTTY} {
		for k := range steps {
			t.Run(fmt.Sprintf("%v/%d", failure, k), func(t *testing.T) {
				rm := newFake(t)
				var failed string
				rm.refuse = func(call int, step string) error {
					if call == k {
						failed = step
						return failure
					}
					return nil
				}
				tr, err := rm.start()
				if err == nil {
					_, clockErr := tr.Clock()
					_, readErr := tr.Read()
					err = errors.Join(clockErr, readErr, tr.Close())
				}
				if left := rm.leaks(); left != "" {
					t.Errorf("%s fails with %v: left behind: %s", failed, failure, left)
				}
				if failed == "" {
					t.Errorf("step %d was not reached: %q", k, rm.steps)
				}
				// Steps with an alternative, and the flush, which is optional.
				spare := k == 2 || k == 3 || k >= 6 && k <= 15
				flush := failed == "control 90cd0104" && failure != nvrm.ErrNoMemory && failure != unix.EINVAL
				if spare || flush {
					if err != nil {
						t.Errorf("%s fails with %v: %v", failed, failure, err)
					}
				} else if !errors.Is(err, failure) {
					t.Errorf("%s fails with %v: %v", failed, failure, err)
				}
			})
		}
	}
}

// TestRefusedOpen checks the error for a step that always fails, and that nothing is left
// behind.
func TestRefusedOpen(t *testing.T) {
	for _, c := range []struct {
		step   string
		err    error
		reason uint32
		says   string // empty: the error is no refusedError
	}{
		{"open", unix.EACCES, 0, "root"},
		{"open", unix.ENOENT, 0, ""},
		{"alloc 0041", unix.EPERM, 0, "root"},
		{"alloc 0041", unix.ENOTTY, 0, "sandbox"},
		{"alloc 0080", nvrm.ErrInvalidArgument, 0, ""},
		{"alloc 90ce", nvrm.ErrNoMemory, 0, "scattered works"},
		{"alloc 90cd", nvrm.ErrInsufficientPermissions, 0, "root"},
		{"alloc 90cd", nvrm.ErrInvalidArgument, 0, ""},
		{"map", nvrm.ErrInvalidObjectParent, 0, ""},
		{"bind", nvrm.ErrNotSupported, 1, "too old"},
		{"bind", nvrm.ErrNotSupported, 2, "confidential"},
		{"bind", nvrm.ErrNotSupported, 3, "driver"},
		{"bind", nvrm.ErrInsufficientPermissions, 4, "administrator"},
		{"bind", nvrm.ErrInsufficientPermissions, 5, "MIG"},
		{"bind", nvrm.ErrInsufficientPermissions, 0, "root"},
		{"bind", nvrm.ErrInvalidState, 0, "MIG"},
		{"control 20800403", nvrm.ErrGPUIsLost, 0, ""},
		{"control 90cd0101", nvrm.ErrInvalidState, 0, ""},
	} {
		t.Run(fmt.Sprintf("%s/%v/%d", c.step, c.err, c.reason), func(t *testing.T) {
			rm := newFake(t)
			rm.reason = c.reason
			binds := 0
			rm.refuse = func(_ int, step string) error {
				bind := strings.HasPrefix(step, "control 208012")
				if bind {
					binds++
				}
				if step == c.step || bind && c.step == "bind" {
					return c.err
				}
				return nil
			}
			tr, err := rm.start()
			if c.says == "scattered works" {
				if err != nil || tr.Close() != nil {
					t.Fatalf("with memory that is not contiguous: %v", err)
				}
			} else {
				var refused refusedError
				is := errors.As(err, &refused)
				if !errors.Is(err, c.err) || is != (c.says != "") || !strings.Contains(refused.reason, c.says) {
					t.Errorf("got refusedError %v, reason %q: %v; want %q", is, refused.reason, err, c.says)
				}
			}
			if c.step == "bind" && binds != 4 {
				t.Errorf("binds: got %d, want 4: one for each of 2 forms and 2 scopes", binds)
			}
			if left := rm.leaks(); left != "" {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}

// TestOwnUserOnly checks that without permission for all users the trace of our own user is
// opened.
func TestOwnUserOnly(t *testing.T) {
	rm := newFake(t)
	binds := 0
	rm.refuse = func(_ int, step string) error {
		if strings.HasPrefix(step, "control 208012") {
			if binds++; binds <= 2 {
				return nvrm.ErrInsufficientPermissions
			}
		}
		return nil
	}
	tr, err := rm.start()
	if err != nil || tr.AllUsers() {
		t.Fatalf("Open: got %v, or all users; want no error and one user", err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

func TestRingWrapsAndDrops(t *testing.T) {
	rm := newFake(t)
	rm.refuse = func(_ int, step string) error {
		if step == "map" && !slices.Contains(rm.steps[:len(rm.steps)-1], "free 90ce") {
			return nvrm.ErrNoMemory // for the largest buffer only
		}
		return nil
	}
	tr, err := rm.start()
	if err != nil {
		t.Fatal(err)
	}
	count := int(tr.buffer.count)
	if count != 16384 {
		t.Fatalf("records: got %d, want 16384", count)
	}
	seq := 0
	for range 5 {
		for range count*2/3 + 7 {
			rm.switches(6, 1, rm.now)
		}
		got, err := tr.Read()
		if err != nil || len(got) != count*2/3+7 {
			t.Fatalf("got %d switches, %v; want %d", len(got), err, count*2/3+7)
		}
		for _, s := range got {
			if s.Seq != uint16(seq) {
				t.Fatalf("sequence number: got %d, want %d", s.Seq, uint16(seq))
			}
			seq++
		}
	}
	for range count + 9 { // the ring holds count-1
		rm.switches(6, 1, rm.now)
	}
	got, err := tr.Read()
	if len(got) != count-1 || err != nil || tr.Dropped() != 10 {
		t.Errorf("got %d switches, %v, %d dropped; want %d and 10", len(got), err, tr.Dropped(), count-1)
	}
	if i := slices.IndexFunc(got, func(s Switch) bool { return s.Cut }); i != count-2 {
		t.Errorf("cut: got switch %d, want the last", i)
	}
	rm.switches(6, 1, rm.now)
	if got, err := tr.Read(); len(got) != 1 || got[0].Cut || err != nil || tr.Dropped() != 10 {
		t.Errorf("then got %d switches, %v, %d dropped; want 1 and 10", len(got), err, tr.Dropped())
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// TestForbiddenFlush checks that without the flush the records of the driver's timer are
// read.
func TestForbiddenFlush(t *testing.T) {
	rm := newFake(t)
	tr, err := rm.start()
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rm.refuse = func(_ int, step string) error {
		if step == "control 90cd0104" {
			return unix.EPERM
		}
		return nil
	}
	rm.switches(6, 1, rm.now)
	for want := range 2 {
		if got, err := tr.Read(); len(got) != want || err != nil {
			t.Errorf("got %v, %v; want %d switches", got, err, want)
		}
		rm.timer()
	}
	n := 0
	for _, s := range rm.steps {
		if s == "control 90cd0104" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("flushes: got %d, want 1", n)
	}
}

func TestHostileRing(t *testing.T) {
	rm := newFake(t)
	tr, err := rm.start()
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rm.hardware = append(rm.hardware, make([]byte, 32)) // of an unknown type
	if got, err := tr.Read(); len(got) != 0 || err != nil {
		t.Errorf("unknown record: got %v, %v; want none", got, err)
	}
	for _, put := range []uint32{65536, 0xffffffff} {
		rm.ring.put = put
		rm.hardware = nil
		if got, err := tr.Read(); len(got) != 0 || err == nil {
			t.Errorf("put %d: got %v, %v; want an error", put, got, err)
		}
	}
	rm.now = -1
	if now, err := tr.Clock(); err == nil {
		t.Errorf("clock: got %d, want an error", now)
	}
}

func TestWhichGPU(t *testing.T) {
	for _, c := range []struct {
		name string
		gpus []uint32
		cfg  Config
		want uint32
		err  bool
	}{
		{"only one", []uint32{5}, Config{}, 5, false},
		{"only one, another file", []uint32{0}, Config{Index: 3}, 0, false},
		{"the driver's first", []uint32{2, 1}, Config{Index: -1}, 2, false},
		{"by UUID, another file", []uint32{0, 1, 2, 3}, Config{Index: 3, UUID: "GPU-00000000-0000-0000-0000-000000000001"}, 1, false},
		{"by UUID", []uint32{0, 1, 2, 3}, Config{UUID: "GPU-00000000-0000-0000-0000-000000000002"}, 2, false},
		{"no such UUID", []uint32{0, 1}, Config{UUID: "GPU-00000000-0000-0000-0000-000000000007"}, 0, true},
		{"no such file", []uint32{0, 1}, Config{Index: 1}, 0, true},
		{"driver has none", nil, Config{Index: 3}, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rm := newFake(t)
			rm.gpus = c.gpus
			c.cfg.DevicePattern = rm.cfg.DevicePattern
			rm.cfg = c.cfg
			if err := os.WriteFile(fmt.Sprintf(rm.cfg.DevicePattern, 3), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			tr, err := rm.start()
			if (err != nil) != c.err {
				t.Fatal(err)
			}
			if err == nil {
				if rm.device != c.want {
					t.Errorf("device %d, want %d", rm.device, c.want)
				}
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
			}
			if left := rm.leaks(); left != "" {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}

// TestBusyDriverIsRetried checks that EAGAIN is retried.
func TestBusyDriverIsRetried(t *testing.T) {
	rm := newFake(t)
	busy := map[string]int{}
	rm.refuse = func(_ int, step string) error {
		if busy[step]++; step != "open" && step != "mmap" && busy[step] == 1 {
			return unix.EAGAIN
		}
		return nil
	}
	tr, err := rm.start()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoDriver(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(Config{Control: filepath.Join(dir, "nvidiactl"), DevicePattern: filepath.Join(dir, "nvidia%d")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
