package shim_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPredict(t *testing.T) {
	b := newBuilder(t)
	b.compile("predict", "test/predict.c", "predict.c")
	if out, err := exec.Command(b.path("predict")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestBoundMeasuresTime: with a grain a bound admits more short commands, but no more long ones,
// on any number of streams.
func TestBoundMeasuresTime(t *testing.T) {
	b := newBuilder(t)
	files, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "page.c" }) // test/pace.c includes it
	b.compile("pace", append([]string{"-Wl,--wrap=clock_gettime,--wrap=gw_sleep", "test/pace.c"}, files...)...)
	for _, c := range []struct {
		streams, us, grain, later, batch, gap int
		least, most                           uint64  // commands in flight
		perMark                               float64 // at least so many commands per mark
		burst                                 uint64  // at most so many us for a hundred commands
	}{
		{streams: 1, us: 1, batch: 4, least: 1, most: 16, perMark: 3.9},
		{streams: 1, us: 1, batch: 100, least: 1, most: 16, perMark: 15.9},
		{streams: 1, us: 1, least: 1, most: 16, perMark: 7.9},
		{streams: 1, us: 20, least: 16, most: 16},
		{streams: 1, us: 20, batch: 4, least: 16, most: 16}, // launches that wait set more marks
		{streams: 1, us: 20, batch: 100, least: 16, most: 16},
		{streams: 1, us: 20, grain: 200, batch: 3, least: 32, most: 128, perMark: 2.9},
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
		var perMark float64
		if _, scan := fmt.Sscan(string(out), &most, &overruns, &perMark, &burst); err != nil || scan != nil {
			t.Fatalf("%+v: %v: %s", c, err, out)
		}
		if most < c.least || most > c.most || overruns != 0 {
			t.Errorf("%+v: %d in flight with a bound of 16, %d overruns", c, most, overruns)
		}
		atMost := 16.0
		if c.batch > 0 {
			atMost = float64(c.batch)
		}
		if c.us >= 5000 {
			atMost = 1.5 // one mark per command, once they are known to be long
		}
		if perMark < c.perMark || perMark > atMost {
			t.Errorf("%+v: %.2f commands per mark", c, perMark)
		}
		if c.burst > 0 && burst > c.burst {
			t.Errorf("%+v: a burst took %d us, want at most %d", c, burst, c.burst)
		}
	}
}

func TestBiasedLock(t *testing.T) {
	b := newBuilder(t)
	b.compile("bias", "-O2", "test/bias.c", "bias.c", "sys.c")
	if out, err := exec.Command(b.path("bias"), "300").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestGuardEmulated runs the device part of giveway_guard.h on the host, one block at a time, and
// the host part on a fake runtime.
func TestGuardEmulated(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++, which giveway_guard.h needs")
	}
	for _, part := range []string{"emulated", "host"} {
		program := filepath.Join(t.TempDir(), part)
		if out, err := exec.Command("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-Itest/fakecudart",
			"-o", program, "test/guard_"+part+".cpp").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if out, err := exec.Command(program).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", part, err, out)
		}
	}
}

// newBuilder returns a builder in a new folder.
func newBuilder(t *testing.T) builder {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc, which the shim needs")
	}
	return builder{t, t.TempDir()}
}

// TestLatePlan: requests of simulated programs enter late where that pays, and hardly any of the
// others do. Neither the P50 nor the P99 suffers.
func TestLatePlan(t *testing.T) {
	b := newBuilder(t)
	b.compile("late_plan", "test/late_plan.c", "late_plan.c")
	out, err := exec.Command(b.path("late_plan")).CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", out)
}

// TestLateModel runs the functions that release waits of late entry in every interleaving, and
// shows that the test would notice mistakes.
func TestLateModel(t *testing.T) {
	b := newBuilder(t)
	scripts := [][]string{{"1p3", "r", "1"}, {"1p3s", "r", "0"}, {"1s", "2s", "1"}, {"12p", "r", "2"}, {"1r", "1", "2"}}
	for mistake := range 5 {
		program := fmt.Sprintf("late_model_%d", mistake)
		b.compile(program, "test/late_model.c", fmt.Sprintf("-DBROKEN=%d", mistake), "-Wno-unused-function")
		found := false
		for _, script := range scripts {
			out, err := exec.Command(b.path(program), script...).CombinedOutput()
			if mistake == 0 && err != nil {
				t.Errorf("%v: %v: %s", script, err, out)
			}
			if mistake == 0 {
				t.Logf("%v: %s", script, out)
			}
			found = err != nil && strings.HasPrefix(string(out), "a wait stays")
			if found {
				break
			}
		}
		if mistake != 0 && !found {
			t.Errorf("mistake %d was not found", mistake)
		}
	}
}
