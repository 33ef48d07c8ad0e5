package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// testRows calls every command of the tables, looked up in every possible way, on drivers
// that only record their calls.
func testRows(b builder) {
	if _, err := exec.LookPath("g++"); err != nil {
		b.t.Skip("no g++, which rows.cpp needs")
	}
	for _, runtime := range []struct {
		name, library string
		bit           uint32
		lookups       []string
	}{
		{"CUDA", "libcuda.so.1", runtimeCUDA, []string{"linked", "dlsym", "asked"}},
		{"HIP", "libamdhip64.so.7", runtimeHIP, []string{"linked", "dlsym", "asked", "entry"}},
		{"OPENCL", "libOpenCL.so.1", runtimeOpenCL, []string{"linked", "dlsym", "asked"}},
		{"LEVELZERO", "libze_loader.so.1", runtimeLevelZero, []string{"linked", "dlsym", "asked"}},
	} {
		b.t.Run(runtime.name, func(t *testing.T) {
			rows := builder{t, t.TempDir()}
			if err := os.Symlink(b.path("libgiveway.so"), rows.path("libgiveway.so")); err != nil {
				t.Fatal(err)
			}
			rows.compileCPP(runtime.library, "-D"+runtime.name, "test/rows_driver.cpp", "-fPIC", "-shared",
				"-Wl,-Bsymbolic,-soname,"+runtime.library)
			rows.compileCPP("rows", "-D"+runtime.name, "test/rows.cpp", "-l:"+runtime.library)
			for _, how := range runtime.lookups {
				t.Run(how, func(t *testing.T) {
					d := newDaemon(t, bound(1, 1))
					start(t, d.Socket(), rows.dir, "rows", how, runtime.library).expectOK()
					if c := d.Page().Counters(); c.Runtimes != runtime.bit {
						t.Errorf("runtimes %b, want %b", c.Runtimes, runtime.bit)
					}
				})
			}
			if runtime.bit == runtimeOpenCL {
				t.Run("behind", func(t *testing.T) {
					start(t, newDaemon(t, noSetup).Socket(), rows.dir, "rows", "behind", runtime.library).expectOK()
				})
			}
			t.Run("held", func(t *testing.T) {
				d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
				p := start(t, d.Socket(), rows.dir, "rows", "held", runtime.library)
				p.waitFor("held")
				page := d.Page()
				p.expectSilence(50 * time.Millisecond)
				if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
					t.Errorf("%d commands passed a closed gate, %d overruns; want 0, 0", c.Launched, c.Overruns)
				}
				page.Release()
				line := p.expectOK()
				if c := page.Counters(); line != fmt.Sprintf("ok rows=%d", c.Launched) {
					t.Errorf("got %q, but %d commands were counted", line, c.Launched)
				}
			})
		})
	}
}
