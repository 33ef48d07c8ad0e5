package amd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/sched"
)

// The tests on a real GPU run only if the environment names giveway-bench:
//
//	CGO_ENABLED=0 go test -c -o amd.test ./internal/amd
//	GIVEWAY_BENCH=./giveway-bench ./amd.test -test.run OnGPU -test.v
//
// Nothing else should use the GPU. They have run on the doubles only, never on hardware.
const benchEnv = "GIVEWAY_BENCH"

// onGPU runs attach on the machine's driver, with a HIP process for every queue.
type onGPU struct {
	*testing.T
	bench     string
	driver    *driver
	gpu       *gpu
	processes map[sched.QueueID]*hipProcess
}

// hipProcess is a process that launches a kernel for every line that it reads.
type hipProcess struct {
	*drivertest.Child
	done atomic.Uint64
}

var nsPerIteration float64 // of giveway-bench's kernel, measured once on an idle GPU

func newOnGPU(t *testing.T, method string) *onGPU {
	t.Helper()
	h := &onGPU{T: t, bench: os.Getenv(benchEnv), processes: map[sched.QueueID]*hipProcess{}}
	if h.bench == "" {
		t.Skip(benchEnv + " is not set; it names giveway-bench, and an AMD GPU is needed")
	}
	if nsPerIteration == 0 {
		out, err := exec.Command(h.bench, "calibrate", "--runtime", "hip").Output()
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
	// The processes exit with the thread that started them, and the threads of debug
	// sessions end.
	runtime.LockOSThread()
	l, err := OpenLab(Config{}, method)
	if err != nil {
		t.Skipf("not on this driver: %v", err)
	}
	h.driver = l.driver
	t.Cleanup(func() { check(t, l.Close()) })
	return h
}

// Unit implements haltest.Harness. The double of a GPU is a thread that needs a CPU.
func (h *onGPU) Unit() time.Duration {
	if os.Getenv("GIVEWAY_DOUBLE") != "" {
		return 300 * time.Millisecond
	}
	return 50 * time.Millisecond
}

func (h *onGPU) Device() hal.Device                       { return h.gpu }
func (h *onGPU) Advance(d time.Duration)                  { time.Sleep(d) }
func (h *onGPU) Completed(id sched.QueueID) uint64        { return h.processes[id].done.Load() }
func (h *onGPU) Submit(id sched.QueueID, d time.Duration) { fmt.Fprintln(h.processes[id].In, d) }

// Open implements haltest.Harness.
func (h *onGPU) Open() sched.QueueID {
	h.Helper()
	p := &hipProcess{}
	p.Child = drivertest.Start(h.T, exec.Command(h.bench, "obey", "--runtime", "hip", "--ns-per-iteration", fmt.Sprint(nsPerIteration)))
	ready := make(chan struct{})
	go p.listen(ready)
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		h.Fatal("giveway-bench is not ready after 30 s")
	}
	id := sched.QueueID(len(h.processes) + 1)
	h.processes[id] = p
	for _, g := range h.driver.gpus {
		if queues, err := h.driver.queuesOf(p.PID); err == nil && len(queues) > 0 && queues[0].GPU == g.node.GPU {
			h.gpu = g
		}
	}
	if h.gpu == nil {
		h.Fatalf("process %d has no compute queue", p.PID)
	}
	return id
}

// Attach implements haltest.Harness.
func (h *onGPU) Attach(id sched.QueueID) (hal.Queue, error) {
	found, err := h.driver.queuesOf(h.processes[id].PID)
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, q := range found {
		if q.GPU == h.gpu.node.GPU {
			ids = append(ids, q.ID)
		}
	}
	return newBundle(h.gpu).attach(ids, target{pid: h.processes[id].PID}, retry{})
}

// listen reads the lines of giveway-bench.
func (p *hipProcess) listen(ready chan struct{}) {
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

func TestConformanceOnGPU(t *testing.T) {
	for _, method := range []string{"batch", "debug"} {
		t.Run(method, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness { return newOnGPU(t, method) })
		})
	}
}
