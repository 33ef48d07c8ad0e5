package nvidia

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/sched"
)

// TestOneCallForSeveralClientsOnGPU checks whether one call of the driver can disable the channels of
// several processes. Its parameters have a client for each channel, and the kernel's part of the driver
// does not compare that with the caller's; what the GPU's firmware does is not known. The call must be
// refused, or stop all processes that it names, and none that it does not. An answer of success that
// stops only the caller's own channels would make it useless. Each process is enabled through its own
// descriptor.
//
// It logs how long a call for one, two and three processes takes. Three calls take 1.7 to 2.6 ms on an
// H200, one after the other. In that time before a request the backend now stops three light queues.
func TestOneCallForSeveralClientsOnGPU(t *testing.T) {
	h := newOnGPU(t)
	const kernel, backlog = 5 * time.Millisecond, 200 // giveway-bench reports no progress while it has many lines to read
	ids := []sched.QueueID{h.Open(), h.Open(), h.Open(), h.Open()}
	bystander := ids[3]
	for _, id := range ids {
		t.Cleanup(func() { _ = h.groups[id].enable(true) })
	}
	submitted := map[sched.QueueID]uint64{}
	progress := func(d time.Duration) map[sched.QueueID]uint64 {
		for _, id := range ids {
			for ; submitted[id] < h.Completed(id)+backlog; submitted[id]++ {
				h.Submit(id, kernel)
			}
		}
		h.Advance(200 * time.Millisecond) // kernels that were finished are reported
		before := map[sched.QueueID]uint64{}
		for _, id := range ids {
			before[id] = h.Completed(id)
		}
		h.Advance(d)
		for _, id := range ids {
			before[id] = h.Completed(id) - before[id]
		}
		return before
	}
	for id, kernels := range progress(300 * time.Millisecond) {
		if kernels == 0 {
			t.Fatalf("process %d does not run, although nothing was disabled", id)
		}
	}
	for n := 1; n <= 3; n++ {
		for _, first := range slices.Compact([]int{0, n - 1}) { // the caller's own channels come first, or last
			caller, named := h.groups[ids[first]], ids[:n]
			begin := time.Now()
			err := disableSeveral(h, caller, named)
			took := time.Since(begin)
			got := progress(300 * time.Millisecond)
			t.Logf("%d processes in one call: %v in %v; kernels in 0.3 s: %v", n, err, took, got)
			for _, id := range named {
				if err := h.groups[id].enable(true); err != nil {
					t.Errorf("enable process %d through its own descriptor: %v", id, err)
				}
			}
			stopped := 0
			for _, id := range named {
				if got[id] == 0 {
					stopped++
				}
			}
			switch {
			case err != nil && (n == 1 || stopped > 0):
				t.Errorf("%d processes: the call fails (%v) and stops %d of them", n, err, stopped)
			case err == nil && stopped != n:
				t.Errorf("%d processes: the call succeeds and stops %d of them", n, stopped)
			}
			if got[bystander] == 0 {
				t.Errorf("%d processes: another one, which was not named, stands still", n)
			}
			for id, kernels := range progress(300 * time.Millisecond) {
				if kernels == 0 {
					t.Errorf("%d processes: %d does not run again after it was enabled", n, id)
				}
			}
		}
	}
}

// disableSeveral disables the channels of several groups in one call through the descriptor of one.
func disableSeveral(h *onGPU, caller *group, named []sched.QueueID) error {
	params, n := make([]byte, 536), 0
	params[0] = 1
	le := binary.LittleEndian
	for _, id := range named {
		g := h.groups[id]
		for _, c := range g.Channels {
			le.PutUint32(params[24+4*n:], uint32(g.Client))
			le.PutUint32(params[280+4*n:], uint32(c))
			n++
		}
	}
	le.PutUint32(params[4:], uint32(n))
	return nvrm.Control(caller.file, caller.Client, caller.Subdevice, nvrmtest.DisableChannels, params)
}
