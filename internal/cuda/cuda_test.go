package cuda

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/gpuwork"
)

func TestMissingLibrary(t *testing.T) {
	_, err := open("libcuda.so.none", 0, gpuwork.Spin)
	if want := "libcuda.so.none: not found: is an NVIDIA driver installed?"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

func TestWrongLibrary(t *testing.T) {
	if _, err := open("libc.so.6", 0, gpuwork.Spin); err == nil || !strings.Contains(err.Error(), "has no cuInit") {
		t.Errorf("got error %v", err)
	}
}

// fake builds the library in testdata.
func fake(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build testdata/fakecuda.c with")
	}
	lib := filepath.Join(t.TempDir(), library)
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", lib, "testdata/fakecuda.c").CombinedOutput(); err != nil {
		t.Fatalf("build the fake: %v\n%s", err, out)
	}
	return lib
}

func openFake(t *testing.T) *GPU {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	g, err := open(fake(t), 0, gpuwork.Spin)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// try returns a function that ends the test on an error. The fake library returns
// one for arguments of a wrong order or width.
func try[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestCallsReachTheLibrary(t *testing.T) {
	g := openFake(t)
	got := [...]any{g.info.Name, g.info.UUID, g.info.CUDA, g.multiprocessors}
	if want := [...]any{"Fake GPU", "GPU-00112233-4455-6677-8899-aabbccddeeff", "13.0", 132}; got != want {
		t.Errorf("got device %v, want %v", got, want)
	}
	if n := try[int](t)(g.FullGrid()); n != 2*132*8 {
		t.Errorf("got a full grid of %d blocks, want %d", n, 2*132*8)
	}
	s := try[gpuwork.Stream](t)(g.NewStream())
	e := try[gpuwork.Event](t)(g.NewEvent(false))
	if err := g.Spin(8, 5_000_000).Launch(s); err != nil { // 50 ms
		t.Fatal(err)
	}
	if err := e.Record(s); err != nil {
		t.Fatal(err)
	}
	if passed := try[bool](t)(e.Passed()); passed {
		t.Error("the event has passed at once, want it to wait for the kernel")
	}
	if err := errors.Join(e.Synchronize(), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
	if passed := try[bool](t)(e.Passed()); !passed {
		t.Error("the event has not passed after the kernel")
	}
	w := try[*gpuwork.Word](t)(g.NewWord())
	if err := g.Parked(w, time.Millisecond).Launch(s); err != nil {
		t.Error(err)
	}
	w.Set(1)
}

func TestErrorsNameTheCall(t *testing.T) {
	g := openFake(t)
	err := g.Spin(0, 1).Launch(try[gpuwork.Stream](t)(g.NewStream()))
	if want := "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): said the fake"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := open(fake(t), 7, gpuwork.Block); err == nil || !strings.Contains(err.Error(), "no GPU 7") {
		t.Errorf("got error %v", err)
	}
}

// TestUnsupportedTarget uses that the fake library does not accept sm_40, as a later
// driver may not accept the oldest target here.
func TestUnsupportedTarget(t *testing.T) {
	g := openFake(t)
	unsupported := ".version 6.0\n.target sm_40"
	written, first := kernels, heads[0]
	t.Cleanup(func() { kernels, heads[0] = written, first })
	kernels, heads[0] = strings.Replace(kernels, first, unsupported, 1), unsupported
	if _, err := g.compileAny(); err != nil {
		t.Error(err)
	}
	kernels = unsupported
	_, err := g.compileAny()
	want := "as .version 6.0 .target sm_40: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): said the fake: ptxas: no such target"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v", err)
	}
}

func TestCalibrate(t *testing.T) {
	fit := try[gpuwork.Fit](t)(gpuwork.Calibrate(openFake(t), 8))
	if math.Abs(fit.NsPerIteration-10) > 0.5 || math.Abs(fit.OverheadUs-2) > 20 || fit.Blocks != 8 {
		t.Errorf("got %+v, want 10 ns per iteration, 2 us, 8 blocks", fit)
	}
}

// TestKernelText checks what is possible without NVIDIA's assembler: names agree,
// every register is declared, and every label is defined once.
func TestKernelText(t *testing.T) {
	if !strings.Contains(kernels, heads[0]+"\n.address_size 64\n") {
		t.Error("the first of heads is not that of kernels.ptx")
	}
	code := regexp.MustCompile(`//[^\n]*`).ReplaceAllString(kernels, "")
	for _, r := range code {
		if r > 126 {
			t.Fatalf("%q is not ASCII", r)
		}
	}
	entries := strings.Split(code, ".visible .entry ")[1:]
	if len(entries) != 2 {
		t.Fatalf("got %d kernels, want 2", len(entries))
	}
	declared := regexp.MustCompile(`\.reg \.(\w+) %([a-z]+)<(\d+)>;`)
	for _, e := range entries {
		name, _, _ := strings.Cut(e, "(")
		bounds := map[string]string{}
		for _, d := range declared.FindAllStringSubmatch(e, -1) {
			bounds[d[2]] = d[3]
		}
		for _, use := range regexp.MustCompile(`%([a-z]+)(\d)\b`).FindAllStringSubmatch(e, -1) {
			if bound := bounds[use[1]]; bound == "" || use[2] >= bound {
				t.Errorf("%s uses %s, declared below %s", name, use[0], bound)
			}
		}
		for _, jump := range regexp.MustCompile(`bra (\w+);`).FindAllStringSubmatch(e, -1) {
			if strings.Count(e, "\n"+jump[1]+":\n") != 1 {
				t.Errorf("%s jumps to %s, which is not defined once", name, jump[1])
			}
		}
	}
}

// TestAssemble assembles the kernels, if NVIDIA's assembler is installed.
func TestAssemble(t *testing.T) {
	ptxas, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("no ptxas")
	}
	for i, arch := range []string{"sm_90", "sm_75", "sm_90"} {
		file := filepath.Join(t.TempDir(), "kernels.ptx")
		if err := os.WriteFile(file, []byte(strings.Replace(kernels, heads[0], heads[i], 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(ptxas, "-arch", arch, "-o", os.DevNull, file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
	}
}
