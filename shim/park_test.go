package shim_test

import (
	"os/exec"
	"path/filepath"
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

// The device's half of the guard for kernels, a block at a time on the host.
func TestGuardEmulated(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++: the guard is C++")
	}
	program := filepath.Join(t.TempDir(), "guard")
	if out, err := exec.Command("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", program, "test/guard_emulated.cpp").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
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
	t.Run("told", func(t *testing.T) {
		c, ended, late := run(ahead(50*time.Millisecond, 0), "told", "20")
		if c.Parked < 10 || c.Hits < c.Parked-2 || c.Saved == 0 || c.ParkedFor == 0 || c.Saved > c.ParkedFor {
			t.Errorf("counted %+v", c)
		}
		if ended != 2*c.Parked && ended != 2*c.Parked-2 || late != 0 {
			t.Errorf("%d kernels ended, %d by themselves, of %d times two", ended, late, c.Parked)
		}
		if c.Launched != 21 {
			t.Errorf("%d commands of the program's, want 21: are ours among them?", c.Launched)
		}
	})
	t.Run("regular", func(t *testing.T) {
		if c, _, _ := run(ahead(50*time.Millisecond, shm.Predict), "silent", "30"); c.Parked < 8 || c.Hits < c.Parked/2 {
			t.Errorf("counted %+v", c)
		}
	})
	t.Run("nobody asked", func(t *testing.T) {
		if c, ended, _ := run(ahead(50*time.Millisecond, 0), "silent", "20"); c.Parked != 0 || ended != 0 {
			t.Errorf("counted %+v, %d kernels", c, ended)
		}
		if c, ended, _ := run(func(*shm.Page) {}, "told", "5"); c.Parked != 0 || ended != 0 {
			t.Errorf("without a lead: counted %+v, %d kernels", c, ended)
		}
	})
	t.Run("wrong", func(t *testing.T) {
		c, _, _ := run(ahead(time.Millisecond, 0), "wrong", "30")
		if c.Parked < 8 || c.Parked > 16 || c.Hits != 0 {
			t.Errorf("counted %+v: it should have given up after eight", c)
		}
	})
	t.Run("waits", func(t *testing.T) {
		if c, _, _ := run(ahead(90*time.Millisecond, 0), "waits", "1"); c.Parked == 0 || c.Hits != 0 {
			t.Errorf("counted %+v", c)
		}
	})
}
