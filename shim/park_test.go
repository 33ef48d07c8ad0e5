package shim_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// testPark: the device is taken ahead of arrivals that are announced or regular, let
// go for whoever could wait for it, and not taken for arrivals that do not come.
func testPark(t *testing.T, dir string) {
	bench{t, dir}.compile("parkwork", "test/parkwork.c")
	slow := 1
	ahead := func(patience time.Duration, watch uint32) func(*shimpage.Page) {
		return func(p *shimpage.Page) {
			p.SetParking(time.Duration(slow)*5*time.Millisecond, patience)
			p.SetWatch(watch)
		}
	}
	begin := func(k *keeper, what string, n int) *program {
		t.Helper()
		return start(t, k, dir, "parkwork", what, strconv.Itoa(n), strconv.Itoa(slow))
	}
	run := func(prepare func(*shimpage.Page), what string, n int) (c shimpage.Counters, line string) {
		t.Helper()
		k := keep(t, prepare)
		p := begin(k, what, n)
		page := k.page()
		line = p.ok()
		return page.Counters(), line
	}
	// Arrivals are regular, and leads long enough, only on a machine that lets a program
	// run when it wants to: on one that is busy it may take some attempts, and arrivals
	// that come more slowly.
	attempts := func(name string, attempt func() error) {
		t.Run(name, func(t *testing.T) {
			for n := range 10 {
				slow = 1 << (n / 2)
				err := attempt()
				if err == nil {
					return
				}
				t.Logf("attempt %d: %v", n+1, err)
			}
			t.Error("it never worked")
		})
		slow = 1
	}
	attempts("told", func() error {
		c, line := run(ahead(50*time.Millisecond, 0), "told", 20)
		ended, late := field(t, line, "ended"), field(t, line, "late")
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
	attempts("told by its owner", func() error {
		k := keep(t, ahead(50*time.Millisecond, shimpage.LogRequests))
		p := begin(k, "silent", 30)
		page := k.page()
		ended := make(chan string, 1)
		go func() { ended <- p.ok() }()
		for {
			select {
			case <-ended:
				if c := page.Counters(); c.Parked < 3 || c.Hits == 0 {
					return fmt.Errorf("counted %+v", c)
				}
				return nil
			case <-time.After(time.Duration(slow) * 15 * time.Millisecond):
				page.SetExpectedArrival(shimpage.Monotonic(time.Now().Add(time.Duration(slow) * 8 * time.Millisecond)))
			}
		}
	})
	attempts("regular", func() error {
		if c, _ := run(ahead(50*time.Millisecond, shimpage.PredictArrivals), "silent", 30); c.Parked < 3 || c.Hits < c.Parked/2 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
	t.Run("nobody asked", func(t *testing.T) {
		if c, line := run(ahead(50*time.Millisecond, 0), "silent", 20); c.Parked != 0 || field(t, line, "ended") != 0 {
			t.Errorf("counted %+v: %s", c, line)
		}
		if c, line := run(func(*shimpage.Page) {}, "told", 5); c.Parked != 0 || field(t, line, "ended") != 0 {
			t.Errorf("without a lead: counted %+v: %s", c, line)
		}
	})
	// It takes the processor some 20 ms, and is in vain if the program is at work then.
	t.Run("compiles", func(t *testing.T) {
		compiled := func(args ...string) (compiled, loaded, ms uint64) {
			t.Helper()
			line := start(t, keep(t, ahead(50*time.Millisecond, 0)), dir, append([]string{"parkwork"}, args...)...).ok()
			return field(t, line, "compiled"), field(t, line, "loaded"), field(t, line, "ms")
		}
		if n, loaded, ms := compiled("busy", "500"); n == 0 || n > 1+ms/1000 || loaded != 0 {
			t.Errorf("%d times in %d ms, and loaded %d times, beside a program that is never idle for long", n, ms, loaded)
		}
		if _, loaded, _ := compiled("ends"); loaded != 0 {
			t.Errorf("what was compiled is loaded at the program's end")
		}
		k := keep(t, ahead(50*time.Millisecond, 0))
		p := start(t, k, dir, "parkwork", "unasked")
		p.until("started")
		k.page().SetParking(0, 0)
		fmt.Fprintln(p.in)
		if line := p.ok(); field(t, line, "compiled") != 0 {
			t.Errorf("without a lead: %s", line)
		}
	})
	attempts("wrong", func() error {
		slow = 1 // or it has rested before the end, and tries again
		c, _ := run(ahead(time.Millisecond, 0), "wrong", 30)
		if c.Parked > 16 || c.Hits != 0 {
			t.Errorf("counted %+v: it should have given up after eight", c)
		}
		if c.Parked < 4 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
	attempts("waits", func() error {
		c, line := run(ahead(90*time.Millisecond, 0), "waits", 1)
		if c.Hits != 0 {
			t.Errorf("counted %+v", c)
		}
		if c.Parked == 0 || field(t, line, "waited") > 50 {
			return fmt.Errorf("counted %+v: %s", c, line)
		}
		return nil
	})
	attempts("slept through", func() error {
		k := keep(t, ahead(90*time.Millisecond, 0))
		p := begin(k, "stopped", 3)
		stat := fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)
		for end := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
			text, _ := os.ReadFile(stat)
			if strings.Contains(string(text), ") T ") {
				break
			}
			// One that has ended is a zombie, until somebody waits for it.
			if len(text) == 0 || strings.Contains(string(text), ") Z ") || time.Now().After(end) {
				t.Fatalf("it was never stopped: %q", p.tail())
			}
		}
		time.Sleep(40 * time.Millisecond) // the arrival is over
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		line := p.ok()
		before, ended := field(t, line, "before"), field(t, line, "ended")
		if ended != before {
			return fmt.Errorf("%d kernels before it was stopped, %d after: it waited for an arrival that was over", before, ended)
		}
		if before == 0 {
			return errors.New("nothing was parked before that")
		}
		return nil
	})
}
