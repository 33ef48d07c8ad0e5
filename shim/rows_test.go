package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// testRows calls every command of the three tables, found in every way that there is, on
// drivers that do nothing but note how they were called.
func testRows(b bench) {
	if _, err := exec.LookPath("g++"); err != nil {
		b.t.Skip("no g++: what calls the rows is C++")
	}
	for _, runtime := range []struct {
		name, library string
		bit           uint32
	}{
		{"CUDA", "libcuda.so.1", runtimeCUDA},
		{"HIP", "libamdhip64.so.7", runtimeHIP},
		{"OPENCL", "libOpenCL.so.1", runtimeOpenCL},
	} {
		b.t.Run(runtime.name, func(t *testing.T) {
			rows := bench{t, t.TempDir()}
			if err := os.Symlink(b.path("libgiveway.so"), rows.path("libgiveway.so")); err != nil {
				t.Fatal(err)
			}
			rows.compileCPP(runtime.library, "-D"+runtime.name, "test/rows_driver.cpp", "-fPIC", "-shared",
				"-Wl,-Bsymbolic,-soname,"+runtime.library)
			rows.compileCPP("rows", "-D"+runtime.name, "test/rows.cpp", "-l:"+runtime.library)
			for _, how := range []string{"linked", "dlsym", "asked"} {
				t.Run(how, func(t *testing.T) {
					k := keep(t, bound(1, 1))
					start(t, k, rows.dir, "rows", how, runtime.library).ok()
					if c := k.page().Counters(); c.Runtimes != runtime.bit {
						t.Errorf("counted for runtimes %b", c.Runtimes)
					}
				})
			}
			t.Run("held", func(t *testing.T) {
				k := keep(t, func(p *shimpage.Page) { p.Hold(lease) })
				p := start(t, k, rows.dir, "rows", "held", runtime.library)
				p.until("held")
				page := k.page()
				p.silent(50 * time.Millisecond)
				if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
					t.Errorf("%d commands got past a shut gate; %d times it was taken for open", c.Launched, c.Overruns)
				}
				page.Release()
				line := p.ok()
				if c := page.Counters(); line != fmt.Sprintf("ok rows=%d", c.Launched) {
					t.Errorf("%q, and %d commands counted", line, c.Launched)
				}
			})
		})
	}
}
