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

// TestParkingInTime runs the parking thread on a simulated device.
func TestParkingInTime(t *testing.T) {
	b := newBuilder(t)
	files, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "park.c" }) // test/parktime.c includes it
	wrap := "-Wl"
	for _, name := range []string{"clock_gettime", "gw_sleep", "gw_futex_wait", "gw_library_symbol"} {
		wrap += ",--wrap=" + name
	}
	b.compile("parktime", append(append([]string{wrap, "test/parktime.c"}, files...), "-lm")...)
	for _, c := range []struct {
		name                           string
		period, jitter, missed, launch int // us, us, %, us
		burst, toldFrom, slowSwitch    int
		copies, waits                  int
		covered                        float64 // at least so many percent of the requests found the device held
		held, inVain                   float64 // at most so many percent of the time, and times a second for nothing
		longest                        float64 // launch in us
	}{
		{name: "regular", period: 20000, covered: 98, held: 1.6, inVain: 0.05, longest: 50},
		{name: "jitter of 0.1 ms", period: 20000, jitter: 100, covered: 88, held: 1.8, inVain: 0.1, longest: 50},
		{name: "jitter of 0.2 ms", period: 20000, jitter: 200, covered: 75, held: 2, inVain: 0.1, longest: 50},
		{name: "jitter of 2 ms", period: 20000, jitter: 2000, held: 0.1, inVain: 0.5, longest: 50},
		{name: "a tenth does not come", period: 20000, jitter: 10, missed: 10, covered: 80, held: 2, inVain: 6, longest: 50},
		{name: "half do not come", period: 20000, jitter: 10, missed: 50, held: 0.3, inVain: 1.5, longest: 50},
		{name: "bursts of five", period: 100000, jitter: 10, burst: 5, covered: 50, held: 2.5, inVain: 11, longest: 50},
		{name: "bursts of three", period: 100000, jitter: 10, burst: 3, held: 0.1, inVain: 1, longest: 50},
		{name: "random", period: 20000, jitter: 20001, held: 0.1, inVain: 0.1, longest: 50},
		{name: "random and busy", period: 400, jitter: 401, held: 1.5, inVain: 2, longest: 50},
		{name: "long launches", period: 20000, jitter: 10, launch: 450, covered: 98, held: 4, inVain: 0.05, longest: 500},
		// No request finds the device held, so it must not be held for every one.
		{name: "launches of 0.8 ms", period: 20000, jitter: 10, launch: 800, held: 0.1, inVain: 1, longest: 850},
		{name: "launches that wait for parked kernels", period: 20000, jitter: 10, waits: 1, held: 0.1, inVain: 1, longest: 600},
		{name: "a copy before the launch", period: 20000, jitter: 10, copies: 1, covered: 98, held: 2, inVain: 0.05, longest: 50},
		{name: "a copy after the request", period: 20000, jitter: 10, copies: 2, covered: 98, held: 2, inVain: 0.05, longest: 50},
		{name: "regular, every 5 ms", period: 5000, jitter: 10, covered: 98, held: 6, inVain: 0.1, longest: 50},
		{name: "slower switches", period: 20000, jitter: 10, slowSwitch: 350, covered: 97, held: 2.8, inVain: 0.05, longest: 50},
		// Requests that cannot be predicted are announced from the middle on.
		{name: "announced", period: 100000, jitter: 10, burst: 3, toldFrom: 50, covered: 48, held: 0.7, inVain: 1, longest: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(fmt.Sprint(c.period, c.jitter, c.missed, max(c.burst, 1), max(c.launch, 20), c.copies, c.waits, c.slowSwitch, c.toldFrom))
			out, err := exec.Command(b.path("parktime"), args...).CombinedOutput()
			var covered, held, inVain, longest, announced float64
			if _, scan := fmt.Sscan(string(out), &covered, &held, &inVain, &longest, &announced); err != nil || scan != nil {
				t.Fatalf("%v, %v: %s", err, scan, out)
			}
			if covered < c.covered || held > c.held || inVain > c.inVain || longest > c.longest {
				t.Errorf("%.1f %% of the requests found the device held, for %.2f %% of the time, %.2f times a second for nothing, the longest launch took %.0f us; want %+v",
					covered, held, inVain, longest, c)
			}
			if c.toldFrom > 0 && (announced < 0 || announced > 0.5) {
				t.Errorf("an announced request found the device held after %v s, want at most 0.5", announced)
			}
		})
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
