package shim_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shm"
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

// testPark: the device is taken ahead of arrivals that are announced or regular, let
// go for whoever could wait for it, and not taken for arrivals that do not come.
func testPark(t *testing.T, dir string) {
	bench{t, dir}.compile("parkwork", "test/parkwork.c")
	ahead := func(patience time.Duration, watch uint32) func(*shm.Page) {
		return func(p *shm.Page) {
			p.Ahead(5*time.Millisecond, patience)
			p.Watch(watch)
		}
	}
	run := func(prepare func(*shm.Page), args ...string) (c shm.Counters, ended, late uint64) {
		t.Helper()
		k := keep(t, prepare)
		p := start(t, k, dir, append([]string{"parkwork"}, args...)...)
		page := k.page()
		line := p.ok()
		return page.Counters(), field(t, line, "ended"), field(t, line, "late")
	}
	// Arrivals are regular, and leads long enough, only on a machine that lets a program
	// run when it wants to: on one that is busy it may take some attempts.
	attempts := func(name string, attempt func() error) {
		t.Run(name, func(t *testing.T) {
			for n := range 12 {
				err := attempt()
				if err == nil {
					return
				}
				t.Logf("attempt %d: %v", n+1, err)
			}
			t.Error("it never worked")
		})
	}
	attempts("told", func() error {
		c, ended, late := run(ahead(50*time.Millisecond, 0), "told", "20")
		if c.Launched != 21 {
			t.Errorf("%d commands of the program's, want 21: are ours among them?", c.Launched)
		}
		if c.Saved > c.ParkedFor || ended > 2*c.Parked {
			t.Errorf("counted %+v, of which %d kernels ended", c, ended)
		}
		if c.Parked < 5 || c.Hits < c.Parked/2 || c.Saved == 0 || c.ParkedFor == 0 || ended < 2*c.Parked-2 || late > 2 {
			return fmt.Errorf("counted %+v, %d kernels ended, %d by themselves", c, ended, late)
		}
		return nil
	})
	attempts("regular", func() error {
		if c, _, _ := run(ahead(50*time.Millisecond, shm.Predict), "silent", "30"); c.Parked < 3 || c.Hits < c.Parked/2 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
	t.Run("nobody asked", func(t *testing.T) {
		if c, ended, _ := run(ahead(50*time.Millisecond, 0), "silent", "20"); c.Parked != 0 || ended != 0 {
			t.Errorf("counted %+v, %d kernels", c, ended)
		}
		if c, ended, _ := run(func(*shm.Page) {}, "told", "5"); c.Parked != 0 || ended != 0 {
			t.Errorf("without a lead: counted %+v, %d kernels", c, ended)
		}
	})
	attempts("wrong", func() error {
		c, _, _ := run(ahead(time.Millisecond, 0), "wrong", "30")
		if c.Parked > 16 || c.Hits != 0 {
			t.Errorf("counted %+v: it should have given up after eight", c)
		}
		if c.Parked < 4 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
	attempts("waits", func() error {
		c, _, _ := run(ahead(90*time.Millisecond, 0), "waits", "1")
		if c.Hits != 0 {
			t.Errorf("counted %+v", c)
		}
		if c.Parked == 0 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
}
