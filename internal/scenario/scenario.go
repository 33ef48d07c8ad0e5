package scenario

import (
	"path/filepath"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
)

// Limits on a file.
const (
	maxBytes    = 8 << 20
	maxDevices  = 64
	maxClients  = 10_000
	maxKernels  = 1_000_000  // of one request
	maxInFlight = 10_000_000 // kernels of all clients submitted at a time
	maxArrivals = 1_000_000  // of a trace
	maxRequests = 10_000_000 // of one client
	maxLength   = 24 * time.Hour
)

// Scenario is the content of a scenario file.
type Scenario struct {
	Name      string
	File      string // path; empty if it was not loaded from a file
	Doc       string
	Policy    string     // name and parameters, as Run takes it
	Config    sim.Config // without a Choice
	Groups    []Group
	Published []Published
}

// Load reads a scenario file, and the trace files that it names.
func Load(path string) (*Scenario, error) {
	data, err := yamlfile.ReadFile(path, maxBytes)
	if err != nil {
		return nil, err
	}
	s, err := Parse(path, data, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return yamlfile.ReadFile(name, maxBytes)
	})
	if err != nil {
		return nil, err
	}
	s.File = path
	return s, nil
}

// Parse reads a scenario. file is the name in errors; open reads the trace files that
// the scenario names. The error is of type yamlfile.Errors unless the file is not YAML.
func Parse(file string, data []byte, open opener) (*Scenario, error) {
	f, err := yamlfile.Read(file, "scenario", data, maxBytes)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, yamlfile.Errors{{File: file, Problem: "the file is empty; docs/SCENARIOS.md shows what belongs in it"}}
	}
	s := readScenario(f, open)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

type form = yamlfile.Form

// opener reads a trace file.
type opener func(path string) ([]byte, error)

func readScenario(f *form, open opener) *Scenario {
	s := &Scenario{Policy: policy.Names()[0]}
	c := &s.Config
	c.Seed, c.Warmup, c.Length = 1, time.Second, 10*time.Second
	f.Ident("name", &s.Name)
	f.Need("name", "demo")
	f.Text("doc", &s.Doc)
	if seed, ok := f.Integer("seed", 0, 1<<62); ok {
		c.Seed = uint64(seed)
	}
	f.Duration("warmup", &c.Warmup, 0, maxLength)
	f.Duration("length", &c.Length, time.Millisecond, maxLength)
	f.Duration("drain", &c.Drain, 0, hour)
	if name, params, ok := f.Choice("policy", "policy", policy.Names(), checkParam); ok {
		s.Policy = spec{name, params}.String()
	}
	if df := f.Form("daemon"); df != nil {
		readDaemon(df, c)
	}
	f.Boolean("allow_livelock", &c.AllowLivelock)
	readDevices(f, c)
	readClients(f, s, open)
	if ff := f.Form("faults"); ff != nil {
		readFaults(ff, &c.Faults)
	}
	f.List("published", "", 100, func(pf *form) {
		var p Published
		pf.Text("source", &p.Source)
		pf.Text("what", &p.What)
		pf.Text("value", &p.Value)
		pf.Need("source", "the paper, section 5")
		pf.Need("value", "40us")
		pf.Done("a published figure")
		s.Published = append(s.Published, p)
	})
	f.Done("a scenario")
	return s
}

// readDaemon reads the settings of the scheduler, and how fast the daemon reacts.
func readDaemon(f *form, c *sim.Config) {
	readTime(f, "wake_delay", &c.WakeDelay, 0, time.Second)
	floor := -1.0
	f.Ratio("floor", &floor, 0, 0.5)
	switch {
	case floor == 0: // the scheduler takes zero for the default, a negative number for none
		c.Sched.Floor = -1
	case floor > 0:
		c.Sched.Floor = floor
	}
	f.Duration("floor_turn", &c.Sched.FloorTurn, time.Millisecond, time.Minute)
	f.Duration("stall_limit", &c.Sched.StallLimit, time.Millisecond, hour)
	renamed(f, "hop", "wake_delay")
	f.Done("the daemon")
}

func readFaults(f *form, v *sim.Faults) {
	f.Ratio("fail", &v.Fail, 0, 0.9)
	f.Ratio("fail_applied", &v.FailApplied, 0, 0.9)
	f.Ratio("permanent", &v.Permanent, 0, 1)
	f.Ratio("late", &v.Late, 0, 1)
	f.Duration("late_by", &v.LateBy, 0, time.Minute)
	f.Ratio("lost_wake", &v.LostWake, 0, 1)
	f.Duration("stall", &v.Stall, time.Millisecond, maxLength)
	readTime(f, "stall_for", &v.StallFor, 0, time.Minute)
	f.Duration("crash", &v.Crash, time.Millisecond, maxLength)
	f.Duration("kill", &v.Kill, time.Millisecond, maxLength)
	f.Duration("trace", &v.Trace, time.Millisecond, maxLength)
	if v.Late > 0 && v.LateBy == 0 {
		f.Need("late_by", "5ms")
	}
	if v.Stall > 0 && v.StallFor == (sim.Dist{}) {
		f.Need("stall_for", "{uniform: [1ms, 20ms]}")
	}
	renamed(f, "doubt", "fail_applied", "never", "permanent", "lost", "lost_wake")
	f.Done("faults")
}
