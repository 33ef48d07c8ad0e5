package amd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
)

// copyTree copies one of the trees in testdata/sysfs, so that a test can change it.
func copyTree(t *testing.T, name string) string {
	t.Helper()
	sys := t.TempDir()
	check(t, os.CopyFS(sys, os.DirFS(filepath.Join("testdata/sysfs", name))))
	return sys
}

func properties(sys string) string {
	return filepath.Join(sys, "class/kfd/kfd/topology/nodes/1/properties")
}

func parameter(sys string) string {
	return filepath.Join(sys, "module/amdgpu/parameters/cwsr_enable")
}

func replaceIn(t *testing.T, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	check(t, err)
	if !strings.Contains(string(text), from) {
		t.Fatalf("%s has no %q", file, from)
	}
	check(t, os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o644))
}

// withoutSizes makes a tree as older drivers have it.
func withoutSizes(t *testing.T, sys string) {
	replaceIn(t, properties(sys), "\ncwsr_size ", "\nx ")
	replaceIn(t, properties(sys), "\nctl_stack_size ", "\ny ")
}

// withoutDebugger removes the bits of the debugger from the capability.
func withoutDebugger(t *testing.T, sys string) {
	replaceIn(t, properties(sys), "\ncapability ", "\ncapability 0\nz ")
}

// TestProbeCWSR checks the answer for three GPUs, in every way in which it can be no, or can be
// unknown.
func TestProbeCWSR(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(t *testing.T, sys string)
		is     answer
		try    bool
		detail string
	}{
		{"as shipped", func(*testing.T, string) {}, yes, true, "kernels can be interrupted: a queue saves"},
		{"on by another number", func(t *testing.T, sys string) { replaceIn(t, parameter(sys), "1", "-1") }, yes, true, "can be interrupted"},
		{"turned off", func(t *testing.T, sys string) { replaceIn(t, parameter(sys), "1", "0") }, no, false, "amdgpu.cwsr_enable is 0"},
		{"turned off, older driver", func(t *testing.T, sys string) { replaceIn(t, parameter(sys), "1", "0"); withoutSizes(t, sys) }, no, false, "amdgpu.cwsr_enable is 0"},
		{"no save area", func(t *testing.T, sys string) { replaceIn(t, properties(sys), "\ncwsr_size ", "\ncwsr_size 0\nx ") }, no, false, "no save area"},
		{"no control stack", func(t *testing.T, sys string) {
			replaceIn(t, properties(sys), "\nctl_stack_size ", "\nctl_stack_size 0\nx ")
		}, no, false, "no save area"},
		{"older driver", withoutSizes, unknown, true, "does not report cwsr_size: it is older than Linux 6.12; it is tried"},
		{"older driver without a debugger", func(t *testing.T, sys string) { withoutSizes(t, sys); withoutDebugger(t, sys) }, unknown, false, "it is not tried"},
		{"hidden parameter", func(t *testing.T, sys string) { check(t, os.Remove(parameter(sys))) }, unknown, true, "cwsr_enable cannot be read"},
		{"hidden parameter, no debugger", func(t *testing.T, sys string) { check(t, os.Remove(parameter(sys))); withoutDebugger(t, sys) }, unknown, false, "it is not tried"},
		{"strange parameter", func(t *testing.T, sys string) { replaceIn(t, parameter(sys), "1", "Y\x1b[2J") }, unknown, true, "not a number"},
	} {
		for gpu, kib := range map[string]string{"gfx90a": "65596 KiB (cwsr_size), of these 36 KiB", "gfx942": "22660 KiB (cwsr_size), of these 12 KiB", "gfx1100": "44968 KiB (cwsr_size), of these 40 KiB"} {
			sys := copyTree(t, gpu)
			c.change(t, sys)
			nodes, err := kfd.Sysfs(sys).Nodes()
			if err != nil || len(nodes) != 1 || nodes[0].GFX.String() != gpu {
				t.Fatalf("%s: got %+v, %v; want one GPU", gpu, nodes, err)
			}
			enabled, enabledErr := kfd.Sysfs(sys).CWSREnabled()
			got := probeCWSR(nodes[0], enabled, enabledErr)
			line := newGPU(nil, 0, nodes[0], got).cwsrCheck()
			if got.is != c.is || got.try != c.try || (got.refusal() == nil) != c.try || line.OK != c.try || !strings.Contains(line.Detail, c.detail) || strings.Contains(line.Detail, "\x1b") {
				t.Errorf("%s, %s: got %+v and %+v, want %d, try %v and %q", gpu, c.what, got, line, c.is, c.try, c.detail)
			}
			if !line.OK && line.Fix == "" || c.what == "as shipped" && !strings.Contains(line.Detail, kib) {
				t.Errorf("%s, %s: got %+v, want a fix or %q", gpu, c.what, line, kib)
			}
		}
	}
	old := kfd.Node{GFX: 80003, Save: kfd.SaveArea{Size: 1 << 20, Stack: 4096, Known: true}}
	if got := probeCWSR(old, true, nil); got.is != no || got.try {
		t.Errorf("gfx803: got %+v, want no", got)
	}
}

// willingShim would stop queues if it were asked to.
type willingShim struct{}

func (willingShim) QueueCount(uint32) int                         { return 1 }
func (willingShim) StopQueues(uint32, time.Duration) (int, error) { return 1, nil }
func (willingShim) StartQueues(uint32, time.Duration)             {}

// TestNoInterruptWithoutCWSR checks that no method claims to interrupt queues where CWSR is
// off: the driver would wait for the kernels to end, and reset the GPU after 9 s.
func TestNoInterruptWithoutCWSR(t *testing.T) {
	for _, patched := range []bool{false, true} {
		for _, off := range []bool{false, true} {
			cfg := kfdtest.Config{Patched: patched, Sys: t.TempDir()}
			h, err := kfdtest.NewHarness("amd-hws", cfg)
			check(t, err)
			if off {
				check(t, os.WriteFile(parameter(cfg.Sys), []byte("0\n"), 0o644))
			}
			h.World.Start(daemonPID, 0)
			d, err := open(Config{
				Sys: kfd.Sysfs(cfg.Sys), File: h.KFD().Open(daemonPID), Tracer: worldTracer{h.World}, Shim: func(int) Shim { return willingShim{} },
			})
			check(t, err)
			id, err := h.Open(1001)
			check(t, err)
			b := newBundle(d.gpus[0])
			q, why := b.attach([]uint32{id.Queue}, target{pid: id.PID}, retry{})
			_, claims := q.(hal.Interrupter)
			if claims == off || off && (why == nil || !strings.Contains(why.Error(), "cwsr_enable is 0") || b.methods() != "") {
				t.Errorf("patched %v, CWSR off %v: got %T, %v, method %q", patched, off, q, why, b.methods())
			}
			found := false
			for _, c := range d.checks() {
				if strings.HasPrefix(c.Name, "AMD CWSR of ") {
					found = c.OK == !off
				}
			}
			if !found {
				t.Errorf("patched %v, CWSR off %v: doctor shows %+v", patched, off, d.checks())
			}
			check(t, q.Close())
			check(t, d.close())
		}
	}
}
