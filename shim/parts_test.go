package shim_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	b.compile("pace", append([]string{"-Wl,--wrap=clock_gettime,--wrap=gw_sleep", "test/pace.c"}, files...)...)
	for _, c := range []struct {
		streams, us, grain, later, batch, gap int
		least, most                           uint64
		apart                                 float64 // commands from mark to mark, at least
		burst                                 uint64  // us at most, for a hundred
	}{
		{streams: 1, us: 1, batch: 4, least: 1, most: 16, apart: 3.9},
		{streams: 1, us: 1, batch: 100, least: 1, most: 16, apart: 15.9},
		{streams: 1, us: 1, least: 1, most: 16, apart: 7.9},
		{streams: 1, us: 20, least: 16, most: 16},
		{streams: 1, us: 20, batch: 4, least: 16, most: 16}, // where launches wait there are more marks
		{streams: 1, us: 20, batch: 100, least: 16, most: 16},
		{streams: 1, us: 20, grain: 200, batch: 3, least: 32, most: 128, apart: 2.9},
		{streams: 1, us: 20, grain: 200, least: 32, most: 128},
		{streams: 1, us: 10, grain: 200, gap: 50, least: 1, most: 128, burst: 1500},
		{streams: 1, us: 20, grain: 1000, least: 160, most: 640},
		{streams: 1, us: 5000, grain: 200, least: 16, most: 16},
		{streams: 1, us: 20000, grain: 200, least: 16, most: 16},
		{streams: 1, us: 25000, grain: 200, batch: 8, least: 16, most: 16},
		{streams: 2, us: 5000, grain: 500, least: 16, most: 20},
		{streams: 8, us: 40000, grain: 500, least: 16, most: 20},
		{streams: 16, us: 5000, grain: 200, least: 16, most: 24},
		{streams: 1, us: 20, grain: 1000, later: 3000, least: 160, most: 640},
		{streams: 1, us: 20, grain: 200, later: 8000, least: 32, most: 128},
		{streams: 1, us: 20, grain: 1000, later: 12000, least: 160, most: 640},
	} {
		args := strings.Fields(fmt.Sprint(c.streams, c.us, c.grain, c.later, c.batch, c.gap))
		out, err := exec.Command(b.path("pace"), args...).CombinedOutput()
		var most, overruns, burst uint64
		var apart float64
		if _, scan := fmt.Sscan(string(out), &most, &overruns, &apart, &burst); err != nil || scan != nil {
			t.Fatalf("%+v: %v: %s", c, err, out)
		}
		if most < c.least || most > c.most || overruns != 0 {
			t.Errorf("%+v: %d in flight with a bound of 16, which was let go %d times", c, most, overruns)
		}
		atMost := 16.0
		if c.batch > 0 {
			atMost = float64(c.batch)
		}
		if c.us >= 5000 {
			atMost = 1.5 // one behind each, once it is known that they are long
		}
		if apart < c.apart || apart > atMost {
			t.Errorf("%+v: %.2f commands from mark to mark", c, apart)
		}
		if c.burst > 0 && burst > c.burst {
			t.Errorf("%+v: a burst took %d us", c, burst)
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
