package nvtrace

import (
	"errors"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

func TestDeviceMemory(t *testing.T) {
	rm := newFake(t)
	pids := []int{2000}
	for pid := range 450 {
		pids = append(pids, pid+1)
	}
	found, err := deviceMemory(rm.cfg, pids, rm.open)
	if err != nil || len(found) != 450 {
		t.Fatalf("got %d processes, %v; want 450", len(found), err)
	}
	for pid, bytes := range found {
		if want := uint64(pid)<<20 + uint64(pid)<<10; bytes != want {
			t.Errorf("process %d: got %d bytes, want %d", pid, bytes, want)
		}
	}
	if len(rm.files) != 0 || len(rm.objects) != 0 {
		t.Errorf("%d files and %d objects are left", len(rm.files), len(rm.objects))
	}
}

func TestDeviceMemoryRefused(t *testing.T) {
	rm := newFake(t)
	rm.refuse = func(_ int, step string) error {
		if strings.HasSuffix(step, "2080018e") {
			return nvrm.ErrNotSupported
		}
		return nil
	}
	if _, err := deviceMemory(rm.cfg, []int{1}, rm.open); !errors.Is(err, nvrm.ErrNotSupported) {
		t.Errorf("got %v, want %v", err, nvrm.ErrNotSupported)
	}
	if len(rm.files) != 0 || len(rm.objects) != 0 {
		t.Errorf("%d files and %d objects are left", len(rm.files), len(rm.objects))
	}
}
