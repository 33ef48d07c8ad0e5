package scenario

import (
	"path/filepath"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
	"go.yaml.in/yaml/v3"
)

// What a file may ask for at most.
const (
	mostBytes    = 8 << 20
	mostDevices  = 64
	mostClients  = 10_000
	mostKernels  = 1_000_000  // of one request
	mostFlight   = 10_000_000 // commands of all programs submitted at a time
	mostArrivals = 1_000_000  // of a trace
	mostRequests = 10_000_000 // of one program
	longest      = 24 * time.Hour
)

// Scenario is a node, its programs, and what goes wrong there.
type Scenario struct {
	Name      string
	File      string // it was loaded from
	Doc       string
	Policy    string     // the scheduler's, as Run takes it
	Config    sim.Config // without a Choice
	Groups    []Group
	Published []Published
}

// Load reads a scenario file, and the trace files that it names.
func Load(path string) (*Scenario, error) {
	data, err := yamlfile.ReadFile(path, mostBytes)
	if err != nil {
		return nil, err
	}
	s, err := Parse(path, data, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return yamlfile.ReadFile(name, mostBytes)
	})
	if err != nil {
		return nil, err
	}
	s.File = path
	return s, nil
}

// Parse reads a scenario. file is its name in errors; open reads the trace files
// that it names. The error is of type yamlfile.Errors unless the file is no YAML at all.
func Parse(file string, data []byte, open func(path string) ([]byte, error)) (*Scenario, error) {
	yr, root, err := yamlfile.Read(file, "scenario", data, mostBytes)
	if err != nil {
		return nil, err
	}
	if root == nil {
		return nil, yamlfile.Errors{{File: file, Problem: "the file is empty; docs/SCENARIOS.md shows what belongs in it"}}
	}
	r := &reader{Reader: yr, open: open}
	s := r.scenario(root)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// reader goes through a file and gathers what is wrong with it.
type reader struct {
	*yamlfile.Reader
	open func(path string) ([]byte, error) // of trace files
}

type form = yamlfile.Form

func (r *reader) scenario(n *yaml.Node) *Scenario {
	s := &Scenario{Policy: policy.Names()[0]}
	c := &s.Config
	c.Seed, c.Warmup, c.Length = 1, time.Second, 10*time.Second
	f := r.Form(n, "")
	f.Ident("name", &s.Name)
	f.Need("name", "demo")
	f.Text("doc", &s.Doc)
	if seed, ok := f.Integer("seed", 0, 1<<62); ok {
		c.Seed = uint64(seed)
	}
	f.Duration("warmup", &c.Warmup, 0, longest)
	f.Duration("length", &c.Length, time.Millisecond, longest)
	f.Duration("drain", &c.Drain, 0, hour)
	r.policy(f, s)
	r.daemon(f, c)
	f.Boolean("allow_livelock", &c.AllowLivelock)
	r.devices(f, c)
	r.clients(f, s)
	r.faults(f, &c.Faults)
	f.List("published", 100, func(n *yaml.Node, path string) {
		var p Published
		pf := r.Form(n, path)
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

// policy reads a policy's name, or its name and parameters side by side.
func (r *reader) policy(f *form, s *Scenario) {
	n := f.Get("policy")
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		pf := r.Form(n, "policy")
		pf.Need("name", s.Policy)
		if i, ok := pf.Word("name", "policy", policy.Names()); ok {
			s.Policy = policy.Names()[i]
			r.params(pf, s)
		}
	default:
		if i, ok := f.Word("policy", "policy", policy.Names()); ok {
			s.Policy = policy.Names()[i]
		}
	}
}

// params tries every parameter for itself, so that each error has its line.
func (r *reader) params(f *form, s *Scenario) {
	p := spec{s.Policy, map[string]string{}}
	for _, key := range f.Keys() {
		if key.Value == "name" {
			continue
		}
		value, ok := f.Scalar(key.Value, "a value")
		if !ok {
			continue
		}
		if _, err := policy.Choose(p.name, map[string]string{key.Value: value}); err != nil {
			f.Wrong(key.Value, "%v", err)
			continue
		}
		p.params[key.Value] = value
	}
	s.Policy = p.String()
}

// daemon reads what an administrator may set of the scheduler, and how fast the
// daemon is.
func (r *reader) daemon(f *form, c *sim.Config) {
	n := f.Get("daemon")
	if n == nil {
		return
	}
	df := r.Form(n, "daemon")
	r.times(df, "hop", &c.WakeDelay, 0, time.Second)
	floor := -1.0
	df.Ratio("floor", &floor, 0, 0.5)
	switch {
	case floor == 0: // zero is the default to the scheduler, and none to a person
		c.Sched.Floor = -1
	case floor > 0:
		c.Sched.Floor = floor
	}
	df.Duration("floor_turn", &c.Sched.FloorTurn, time.Millisecond, time.Minute)
	df.Duration("stall_limit", &c.Sched.StallLimit, time.Millisecond, hour)
	df.Done("the daemon")
}

func (r *reader) faults(f *form, v *sim.Faults) {
	n := f.Get("faults")
	if n == nil {
		return
	}
	ff := r.Form(n, "faults")
	ff.Ratio("fail", &v.Fail, 0, 0.9)
	ff.Ratio("doubt", &v.FailApplied, 0, 0.9)
	ff.Ratio("never", &v.Permanent, 0, 1)
	ff.Ratio("late", &v.Late, 0, 1)
	ff.Duration("late_by", &v.LateBy, 0, time.Minute)
	ff.Ratio("lost", &v.LostWake, 0, 1)
	ff.Duration("crash", &v.Crash, time.Millisecond, longest)
	ff.Duration("kill", &v.Kill, time.Millisecond, longest)
	if v.Late > 0 && v.LateBy == 0 {
		ff.Need("late_by", "5ms")
	}
	ff.Done("faults")
}
