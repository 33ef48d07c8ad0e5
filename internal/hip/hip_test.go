package hip

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
	"github.com/giveway/giveway/internal/hip/hiptest"
)

func openDouble(t *testing.T, version int) *GPU {
	t.Helper()
	library := filepath.Join(hiptest.Build(t, version), fmt.Sprintf("libamdhip64.so.%d", version))
	g, err := open([]string{"libamdhip64.so.none", library}, 0, gpuwork.Spin)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// try returns a function that ends the test on an error. The double returns one for
// arguments of a wrong order or width.
func try[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestMissingLibrary(t *testing.T) {
	_, err := open([]string{"libamdhip64.so.none"}, 0, gpuwork.Spin)
	if want := "libamdhip64.so.none: not found: is AMD's ROCm installed?"; !errors.Is(err, clib.ErrNotFound) || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := open([]string{"libc.so.6"}, 0, gpuwork.Spin); err == nil || !strings.Contains(err.Error(), "has no hipInit") {
		t.Errorf("got error %v", err)
	}
}

func TestDouble(t *testing.T) {
	g := openDouble(t, 6)
	t.Run("CallsReachTheLibrary", func(t *testing.T) { testCalls(t, g) })
	t.Run("ParkedKernelWaits", func(t *testing.T) { testParked(t, g) })
	t.Run("Calibrate", func(t *testing.T) { testCalibrate(t, g) })
	t.Run("DoubleRefuses", func(t *testing.T) { testRefusals(t, g) })
}

func testCalls(t *testing.T, g *GPU) {
	if want := (gpuwork.Info{Name: "HIP double, not hardware", UUID: "GPU-00112233445566ff", HIP: "6.3", Arch: "gfx942:sramecc+:xnack-"}); g.Info() != want {
		t.Errorf("got %+v, want %+v", g.Info(), want)
	}
	if n := try[int](t)(g.FullGrid()); n != 2*304*8 {
		t.Errorf("got a full grid of %d blocks, want %d", n, 2*304*8)
	}
	s := try[gpuwork.Stream](t)(g.NewStream())
	e := try[gpuwork.Event](t)(g.NewEvent(false))
	if err := errors.Join(g.Spin(8, 5_000_000).Launch(s), e.Record(s)); err != nil { // 50 ms
		t.Fatal(err)
	}
	if try[bool](t)(e.Passed()) {
		t.Error("the event has passed at once, want it to wait for the kernel")
	}
	if err := errors.Join(e.Synchronize(), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
	if !try[bool](t)(e.Passed()) {
		t.Error("the event has not passed after the kernel")
	}
	if _, err := e.MillisecondsSince(e); err == nil || !strings.Contains(err.Error(), "hipEventElapsedTime: hipErrorInvalidHandle (400)") {
		t.Errorf("time of events without timing: got error %v", err)
	}
}

// testParked checks that a parked kernel ends when the word is set, and by itself when it
// is not.
func testParked(t *testing.T, g *GPU) {
	s, w := try[gpuwork.Stream](t)(g.NewStream()), try[*gpuwork.Word](t)(g.NewWord())
	e := try[gpuwork.Event](t)(g.NewEvent(false))
	if err := errors.Join(g.Parked(w, time.Minute).Launch(s), e.Record(s)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if try[bool](t)(e.Passed()) {
		t.Error("the parked kernel has ended before the word was set")
	}
	w.Set(1)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	w.Set(0)
	if err := errors.Join(g.Parked(w, 10*time.Millisecond).Launch(s), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
}

// TestHIP5 uses a library with the struct of HIP 5 and the compiler inside.
func TestHIP5(t *testing.T) {
	if g := openDouble(t, 5); g.Info().Arch != "gfx942:sramecc+:xnack-" {
		t.Errorf("got target %q", g.Info().Arch)
	}
}

func testCalibrate(t *testing.T, g *GPU) {
	fit := try[gpuwork.Fit](t)(gpuwork.Calibrate(g, 8))
	if math.Abs(fit.NsPerIteration-10) > 2 || fit.Blocks != 8 { // a busy machine wakes the double late
		t.Errorf("got %+v, want 10 ns per iteration, 8 blocks", fit)
	}
}

// testRefusals checks that the double is no kinder than the real library.
func testRefusals(t *testing.T, g *GPU) {
	s := try[gpuwork.Stream](t)(g.NewStream())
	good, never := g.Spin(8, 1).(*kernel), uintptr(0xdead000)
	wrong := func(change func(k *kernel)) *kernel {
		k := g.newKernel(good.f, good.blocks, good.threads, good.args[0], good.args[1])
		change(k)
		return k
	}
	for name, test := range map[string]struct {
		do   func() error
		want string
	}{
		"no blocks":        {func() error { return wrong(func(k *kernel) { k.blocks = 0 }).Launch(s) }, "hipModuleLaunchKernel: hipErrorInvalidConfiguration (9)"},
		"large block":      {func() error { return wrong(func(k *kernel) { k.threads = 2048 }).Launch(s) }, "hipErrorInvalidConfiguration"},
		"unknown memory":   {func() error { return wrong(func(k *kernel) { k.args[0] = 0xdead000 }).Launch(s) }, "hipErrorInvalidValue"},
		"unknown function": {func() error { return wrong(func(k *kernel) { k.f = never }).Launch(s) }, "hipErrorInvalidHandle"},
		"unknown stream":   {func() error { return good.Launch(&stream{g, never}) }, "hipErrorInvalidHandle"},
		"unknown event":    {func() error { return (&event{g, never}).Record(s) }, "hipErrorInvalidHandle"},
		"other device":     {func() error { return g.call(hipSetDevice, 1) }, "hipSetDevice"},
	} {
		if err := test.do(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	if _, err := g.compileFor(kernels, "gfx000"); err == nil || !strings.Contains(err.Error(), "HIPRTC_ERROR_COMPILATION (6): see hiprtc.h: error: unknown target 'gfx000'") {
		t.Errorf("unknown target: got error %v", err)
	}
	if _, err := g.compileFor("int x;", "gfx942"); err == nil || !strings.Contains(err.Error(), "no kernel") {
		t.Errorf("no kernel: got error %v", err)
	}
	g.info.Arch = "gfx90a"
	if err := g.loadKernels(); err == nil || !strings.Contains(err.Error(), "hipModuleLoadData: hipErrorNoBinaryForGpu (209)") {
		t.Errorf("code for another target: got error %v", err)
	}
}

// TestRealCompiler compiles the kernels with AMD's own compiler where it is installed. It
// needs no GPU.
func TestRealCompiler(t *testing.T) {
	r := &loaded{}
	if err := r.load(libraries); errors.Is(err, clib.ErrNotFound) {
		t.Skip("no libamdhip64 on this machine (Debian: libamdhip64-5)")
	} else if r.rtc == nil {
		t.Fatal(err)
	} // hipInit fails without a GPU
	for _, arch := range []string{"gfx906", "gfx90a", "gfx1030"} { // gfx942 is younger than Debian's compiler
		if code, err := r.compileFor(kernels, arch); err != nil || !strings.HasPrefix(string(code[1:]), "ELF") && !strings.HasPrefix(string(code), "__CLANG_OFFLOAD_BUNDLE__") {
			t.Errorf("%s: got %d bytes of code, %v", arch, len(code), err)
		}
	}
	if _, err := r.compileFor("nonsense", "gfx906"); err == nil || !strings.Contains(err.Error(), "HIPRTC_ERROR_COMPILATION (6)") {
		t.Errorf("nonsense: got error %v", err)
	}
}
