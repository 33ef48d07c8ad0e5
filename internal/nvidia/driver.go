package nvidia

import (
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// loadedDriver decides whether the loaded driver may be changed: its branch is in the table
// of nvrm, or its self-test has passed. docs/DRIVERS.md describes both.
type loadedDriver struct {
	root    fs.FS
	control string
	pattern string

	mu   sync.Mutex
	last *driverState // nil: not looked at yet
}

// driverState is what is known of the loaded driver.
type driverState struct {
	nvrm.Driver
	err      error       // its version cannot be read
	branch   nvrm.Branch // its row of the table
	known    bool        // the layouts of the branch were checked
	selfTest error       // of an unknown driver; nil: passed
}

// mayChange reports whether slices may be set and channels disabled.
func (s driverState) mayChange() bool { return s.known || s.selfTest == nil }

// state returns the state of the loaded driver. The self-test runs once for each driver
// that is not known.
func (d *loadedDriver) state() driverState {
	d.mu.Lock()
	defer d.mu.Unlock()
	driver, err := nvrm.ReadDriver(d.root)
	if d.last != nil && d.last.Driver == driver {
		return *d.last
	}
	s := driverState{Driver: driver, err: err}
	if s.branch, s.known = driver.Branch(); !s.known {
		s.selfTest = d.runSelfTest()
	}
	d.last = &s
	return s
}

func (d *loadedDriver) runSelfTest() error {
	f, err := nvrm.Open(d.control)
	if err != nil {
		return err
	}
	defer f.Close()
	// RM refuses to make a device if no GPU could be opened: the self-test reports that.
	if gpu, err := nvrm.OpenGPU(d.pattern, -1); err == nil {
		defer gpu.Close()
	}
	return nvrm.SelfTest(f)
}

// check says which driver is loaded and what may be done with it. usable is false if there
// is none, or if it cannot be reached.
func (d *loadedDriver) check() (c hal.Check, usable bool) {
	c.Name = "NVIDIA driver"
	if _, err := os.Stat(d.control); err != nil {
		driver, unloaded := nvrm.ReadDriver(d.root)
		if unloaded != nil {
			c.OK, c.Detail = true, "none is loaded"
			return c, false
		}
		c.Detail = fmt.Sprintf("%s is loaded: %v", driver.Version, err)
		c.Fix = "in a container, pass the device in; otherwise run nvidia-smi once, which makes it"
		return c, false
	}
	s := d.state()
	module := s.Version + ", closed module"
	switch {
	case s.err != nil:
		module = "of unknown version"
	case s.Open:
		module = s.Version + ", open module"
	}
	c.OK = s.mayChange()
	switch {
	case s.known && len(s.branch.Ran) > 0:
		c.Detail = "known: compared with its source, branch run on hardware"
	case s.known:
		c.Detail = "known: compared with its source, never run on hardware"
	case c.OK:
		c.Detail = "unknown: its self-test passed, so slices and interrupts are used and the context-switch trace is not"
	default:
		c.Detail = fmt.Sprintf("unknown, and its self-test failed (%v): processes are shown and nothing is changed", s.selfTest)
		c.Fix = "use a driver that docs/DRIVERS.md lists, or add this one as it describes"
	}
	c.Detail = module + ", " + c.Detail
	return c, true
}
