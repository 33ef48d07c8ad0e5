package nvidia_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Tests on a real GPU run only when told where the program is that obeys them:
//
//	CGO_ENABLED=0 go test -c -o nvidia.test ./internal/nvidia
//	GIVEWAY_BENCH=./giveway-bench ./nvidia.test -test.run OnGPU -test.v
//
// The GPU should have nothing else to do.
const benchEnv = "GIVEWAY_BENCH"

// onGPU drives the backend on a real GPU, with a CUDA process for every queue.
type onGPU struct {
	*testing.T
	bench  string
	watch  *discover.Watcher
	device *nvidia.Device
	groups map[sched.QueueID]*discover.Group
	progs  map[sched.QueueID]*program
}

// program is a process that launches a kernel for every line it reads.
type program struct {
	pid  int
	in   io.Writer
	done atomic.Uint64
}

var nsPerIteration float64 // measured once, on an idle GPU

func newOnGPU(t *testing.T) *onGPU {
	t.Helper()
	bench := os.Getenv(benchEnv)
	if bench == "" {
		t.Skip(benchEnv + " is not set: it names giveway-bench, and there must be a GPU")
	}
	h := &onGPU{T: t, bench: bench, groups: map[sched.QueueID]*discover.Group{}, progs: map[sched.QueueID]*program{}}
	if nsPerIteration == 0 {
		out, err := exec.Command(bench, "calibrate").Output()
		var said struct {
			Calibration struct {
				Full struct {
					NsPer float64 `json:"ns_per_iteration"`
				}
			}
		}
		if err == nil {
			err = json.Unmarshal(out, &said)
		}
		if nsPerIteration = said.Calibration.Full.NsPer; err != nil || nsPerIteration <= 0 {
			t.Fatalf("calibrate: %v: %s", err, out)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	var err error
	if h.watch, err = discover.Watch(ctx, discover.Config{Only: proc.Everyone}); err != nil {
		t.Fatal(err)
	}
	h.device = nvidia.New("GPU-test", "the first")
	return h
}

func (h *onGPU) Device() hal.Attacher                 { return h.device }
func (h *onGPU) Advance(d time.Duration)              { time.Sleep(d) }
func (h *onGPU) Unit() time.Duration                  { return 20 * time.Millisecond }
func (h *onGPU) Completed(s hal.Spec) uint64          { return h.progs[s.Queue].done.Load() }
func (h *onGPU) Submit(s hal.Spec, d time.Duration)   { fmt.Fprintln(h.progs[s.Queue].in, d) }
func (h *onGPU) group(q sched.QueueID) discover.Group { return *h.groups[q] }

// Open implements haltest.Harness.
func (h *onGPU) Open() hal.Spec {
	h.Helper()
	p := &program{}
	cmd := exec.Command(h.bench, "obey", "--ns-per-iteration", fmt.Sprint(nsPerIteration))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		h.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be paused: only this is sure
		_ = cmd.Wait()
	})
	p.pid, p.in = cmd.Process.Pid, in
	ready := make(chan struct{})
	go p.listen(out, ready)
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		h.Fatal("the program was not ready after 30 s")
	}
	g := h.find(p.pid)
	id := sched.QueueID(len(h.progs) + 1)
	h.progs[id], h.groups[id] = p, g
	h.device.Offer(id, nvidia.Target{File: g.File, Client: g.Client, Group: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels})
	return hal.Spec{Queue: id}
}

func (p *program) listen(out io.Reader, ready chan struct{}) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var m struct {
			Ready    bool
			Progress *struct{ Done uint64 }
		}
		_ = json.Unmarshal(lines.Bytes(), &m) // a line that says nothing changes nothing
		if m.Ready {
			close(ready)
		}
		if m.Progress != nil {
			p.done.Store(m.Progress.Done)
		}
	}
}

// find waits until the process's group has been found for the last time.
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
				h.Fatalf("no compute group of process %d was found", pid)
			}
			return found
		}
	}
}

func TestConformanceOnGPU(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newOnGPU(t) })
}

// TestDisableSchedulingOnGPU: bOnlyDisableScheduling is no level 2. What runs is
// taken off the GPU as well, and on an H200 with 580.159.04 enabling the channels
// again did not bring it back. A driver on which a running kernel is let finish
// shows up here.
func TestDisableSchedulingOnGPU(t *testing.T) {
	h := newOnGPU(t)
	spec := h.Open()
	g := h.group(spec.Queue)
	for range 4 {
		h.Submit(spec, h.Unit())
	}
	h.Advance(h.Unit() / 2)
	if err := nvrm.DisableChannels(g.File, g.Client, g.Subdevice, g.Channels, true, true); err != nil {
		t.Fatal(err)
	}
	h.Advance(8 * h.Unit())
	if n := h.Completed(spec); n != 0 {
		t.Errorf("%d of four kernels ended, disabled half-way through the first: is it a level 2 here?", n)
	}
	if err := nvrm.DisableChannels(g.File, g.Client, g.Subdevice, g.Channels, false, false); err != nil {
		t.Fatal(err)
	}
	h.Advance(8 * h.Unit())
	t.Logf("%d of four kernels ended after it was enabled again", h.Completed(spec))
}
