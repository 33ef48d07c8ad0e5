package shim_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// What parking learns is numbers in, numbers out.
func TestPredict(t *testing.T) {
	b := newTools(t)
	b.compile("predict", "test/predict.c", "predict.c")
	if out, err := exec.Command(b.path("predict")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A bound is worth time: more of short commands are in flight, and of long ones no more
// than it says, on however many streams.
func TestPace(t *testing.T) {
	b := newTools(t)
	files, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "page.c" }) // the test has it
	b.compile("pace", append([]string{"test/pace.c"}, files...)...)
	for _, c := range []struct {
		streams, us, grain, later int
		least, most               uint64
	}{
		{1, 20, 0, 0, 1, 16},
		{1, 20, 200, 0, 32, 128},
		{1, 20, 1000, 0, 160, 640},
		{1, 5000, 200, 0, 16, 16},
		{1, 20000, 200, 0, 16, 16},
		{2, 5000, 500, 0, 16, 20},
		{8, 40000, 500, 0, 16, 20},
		{16, 5000, 200, 0, 16, 24},
		{1, 20, 1000, 3000, 160, 640},
		{1, 20, 200, 8000, 32, 128},
		{1, 20, 1000, 12000, 160, 640},
	} {
		args := []string{fmt.Sprint(c.streams), fmt.Sprint(c.us), fmt.Sprint(c.grain), fmt.Sprint(c.later)}
		out, err := exec.Command(b.path("pace"), args...).CombinedOutput()
		var most, overruns uint64
		if _, scan := fmt.Sscan(string(out), &most, &overruns); err != nil || scan != nil {
			t.Fatalf("%+v: %v: %s", c, err, out)
		}
		if overruns == 1 { // this machine stood still for 100 ms, it seems
			continue
		}
		if most < c.least || most > c.most || overruns != 0 {
			t.Errorf("%+v: %d in flight with a bound of 16, which was let go %d times", c, most, overruns)
		}
	}
}

// A lock that one thread owns until others come.
func TestBias(t *testing.T) {
	b := newTools(t)
	b.compile("bias", "-O2", "test/bias.c", "bias.c", "sys.c")
	if out, err := exec.Command(b.path("bias"), "300").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The device's half of the guard for kernels, a block at a time on the host; and the
// host's half, on a runtime of ours.
func TestGuardEmulated(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++: the guard is C++")
	}
	for _, half := range []string{"emulated", "host"} {
		program := filepath.Join(t.TempDir(), half)
		if out, err := exec.Command("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-Itest/fakecudart",
			"-o", program, "test/guard_"+half+".cpp").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if out, err := exec.Command(program).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", half, err, out)
		}
	}
}

// newTools is a bench for programs that need no shim.
func newTools(t *testing.T) bench {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: the shim is C")
	}
	return bench{t, t.TempDir()}
}
