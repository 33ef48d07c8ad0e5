package nvidia

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// The tests on a real GPU run only if the environment names giveway-bench:
//
//	CGO_ENABLED=0 go test -c -o nvidia.test ./internal/nvidia
//	GIVEWAY_BENCH=./giveway-bench ./nvidia.test -test.run OnGPU -test.v
//
// Nothing else should use the GPU.
const benchEnv = "GIVEWAY_BENCH"

// onGPU runs attach on a real GPU, with a CUDA process for every queue.
type onGPU struct {
	*testing.T
	bench string
	watch *discover.Watcher
	groups
	processes map[sched.QueueID]*cudaProcess
}

// cudaProcess is a process that launches a kernel for every line that it reads.
type cudaProcess struct {
	*drivertest.Child
	done atomic.Uint64
}

var nsPerIteration float64 // of giveway-bench's kernel, measured once on an idle GPU

func newOnGPU(t *testing.T) *onGPU {
	t.Helper()
	bench := os.Getenv(benchEnv)
	if bench == "" {
		t.Skip(benchEnv + " is not set; it names giveway-bench, and a GPU is needed")
	}
	h := &onGPU{T: t, bench: bench, groups: groups{}, processes: map[sched.QueueID]*cudaProcess{}}
	if nsPerIteration == 0 {
		out, err := exec.Command(bench, "calibrate").Output()
		var result struct {
			Calibration struct {
				Full struct {
					NsPer float64 `json:"ns_per_iteration"`
				}
			}
		}
		if err == nil {
			err = json.Unmarshal(out, &result)
		}
		if nsPerIteration = result.Calibration.Full.NsPer; err != nil || nsPerIteration <= 0 {
			t.Fatalf("calibrate: %v: %s", err, out)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	var err error
	if h.watch, err = discover.Watch(ctx, discover.Config{Only: proc.Everyone}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *onGPU) Advance(d time.Duration)                  { time.Sleep(d) }
func (h *onGPU) Unit() time.Duration                      { return 20 * time.Millisecond }
func (h *onGPU) Completed(id sched.QueueID) uint64        { return h.processes[id].done.Load() }
func (h *onGPU) Submit(id sched.QueueID, d time.Duration) { fmt.Fprintln(h.processes[id].In, d) }

// Open implements haltest.Harness.
func (h *onGPU) Open() sched.QueueID {
	h.Helper()
	p := &cudaProcess{}
	cmd := exec.Command(h.bench, "obey", "--ns-per-iteration", fmt.Sprint(nsPerIteration))
	p.Child = drivertest.Start(h.T, cmd)
	ready := make(chan struct{})
	go p.listen(ready)
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		h.Fatal("giveway-bench is not ready after 30 s")
	}
	id := sched.QueueID(len(h.processes) + 1)
	h.processes[id], h.groups[id] = p, newGroup(h.find(p.PID))
	return id
}

// listen reads the lines of giveway-bench.
func (p *cudaProcess) listen(ready chan struct{}) {
	for lines := bufio.NewScanner(p.Out); lines.Scan(); {
		var m struct {
			Ready    bool
			Progress *struct{ Done uint64 }
		}
		_ = json.Unmarshal(lines.Bytes(), &m) // other lines are ignored
		if m.Ready {
			close(ready)
		}
		if m.Progress != nil {
			p.done.Store(m.Progress.Done)
		}
	}
}

// find returns the group of a process when it has not changed for 300 ms.
func (h *onGPU) find(pid int) *discover.Group {
	h.Helper()
	var found *discover.Group
	for wait := 10 * time.Second; ; wait = 300 * time.Millisecond {
		select {
		case ev := <-h.watch.Events():
			if ev.Found == nil {
				continue
			}
			if ev.Found.Process.PID != pid {
				_ = ev.Found.File.Close()
				continue
			}
			if found != nil {
				_ = found.File.Close()
			}
			found = ev.Found
		case <-time.After(wait):
			if found == nil {
				h.Fatalf("process %d: no compute group found in 10 s", pid)
			}
			return found
		}
	}
}

func TestConformanceOnGPU(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newOnGPU(t) })
}

// TestDisableSchedulingIsNotDeactivateOnGPU checks that bOnlyDisableScheduling does not let
// the running kernel finish, so that it cannot serve as deactivate (level 2). On an H200
// with 580.159.04 the running kernel left the GPU too, and enabling the channels again did
// not bring it back.
func TestDisableSchedulingIsNotDeactivateOnGPU(t *testing.T) {
	h := newOnGPU(t)
	id := h.Open()
	g := h.groups[id]
	for range 4 {
		h.Submit(id, h.Unit())
	}
	h.Advance(h.Unit() / 2)
	// bDisable 0, numChannels 4, bOnlyDisableScheduling 8, hClientList 24, hChannelList 280.
	params := make([]byte, 536)
	params[0], params[8] = 1, 1
	le := binary.LittleEndian
	le.PutUint32(params[4:], uint32(len(g.Channels)))
	for i, c := range g.Channels {
		le.PutUint32(params[24+4*i:], uint32(g.Client))
		le.PutUint32(params[280+4*i:], uint32(c))
	}
	if err := nvrm.Control(g.file, g.Client, g.Subdevice, nvrmtest.DisableChannels, params); err != nil {
		t.Fatal(err)
	}
	h.Advance(8 * h.Unit())
	if n := h.Completed(id); n != 0 {
		t.Errorf("kernels finished while disabled: got %d of 4, want 0; does it deactivate on this driver?", n)
	}
	if err := nvrm.DisableChannels(g.file, g.Client, g.Subdevice, g.Channels, false); err != nil {
		t.Fatal(err)
	}
	h.Advance(8 * h.Unit())
	t.Logf("kernels finished after the channels were enabled: %d of 4", h.Completed(id))
}
