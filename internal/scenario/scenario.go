package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
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
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	s, err := Parse(path, data, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return readFile(name)
	})
	if err != nil {
		return nil, err
	}
	s.File = path
	return s, nil
}

// readFile reads a file of bounded size. It refuses what is not a plain file,
// so that nobody waits for a pipe or reads a device for ever.
func readFile(path string) ([]byte, error) {
	data, err := readPlain(path)
	var wrapped *os.PathError
	if errors.As(err, &wrapped) {
		err = wrapped.Err // which call it was is nobody's concern
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

func readPlain(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a plain file")
	case info.Size() > mostBytes:
		return nil, fmt.Errorf("larger than %d MiB", mostBytes>>20)
	}
	return os.ReadFile(path)
}

// Parse reads a scenario. file is its name in errors; open reads the trace files
// that it names. The error is of type Errors unless the file is no YAML at all.
func Parse(file string, data []byte, open func(path string) ([]byte, error)) (*Scenario, error) {
	if len(data) > mostBytes {
		return nil, Errors{{file, 0, "", fmt.Sprintf("larger than %d MiB", mostBytes>>20)}}
	}
	var doc, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, Errors{{file, 0, "", "the file is empty; docs/SCENARIOS.md shows what belongs in it"}}
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		return nil, Errors{{file, rest.Line, "", "one scenario a file: there is a second document"}}
	}
	r := &reader{file: file, open: open}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, Errors{{file, 0, "", "the file is empty; docs/SCENARIOS.md shows what belongs in it"}}
	}
	s := r.scenario(doc.Content[0])
	if len(r.errs) > 0 {
		sortErrors(r.errs)
		return nil, r.errs
	}
	return s, nil
}

func (r *reader) scenario(n *yaml.Node) *Scenario {
	s := &Scenario{Policy: policy.Names()[0]}
	c := &s.Config
	c.Seed, c.Warmup, c.Length = 1, time.Second, 10*time.Second
	f := r.form(n, "")
	f.ident("name", &s.Name)
	f.need("name", "demo")
	f.text("doc", &s.Doc)
	if seed, ok := f.integer("seed", 0, 1<<62); ok {
		c.Seed = uint64(seed)
	}
	f.duration("warmup", &c.Warmup, 0, longest)
	f.duration("length", &c.Length, time.Millisecond, longest)
	f.duration("drain", &c.Drain, 0, hour)
	r.policy(f, s)
	r.daemon(f, c)
	f.boolean("allow_livelock", &c.AllowLivelock)
	r.devices(f, c)
	r.clients(f, s)
	r.faults(f, &c.Faults)
	f.list("published", 100, func(n *yaml.Node, path string) {
		var p Published
		pf := r.form(n, path)
		pf.text("source", &p.Source)
		pf.text("what", &p.What)
		pf.text("value", &p.Value)
		pf.need("source", "the paper, section 5")
		pf.need("value", "40us")
		pf.done("a published figure")
		s.Published = append(s.Published, p)
	})
	f.done("a scenario")
	return s
}

// policy reads a policy's name, or its name and parameters side by side.
func (r *reader) policy(f *form, s *Scenario) {
	n := f.get("policy")
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		pf := r.form(n, "policy")
		pf.need("name", s.Policy)
		if i, ok := pf.word("name", "policy", policy.Names()); ok {
			s.Policy = policy.Names()[i]
			r.params(pf, s)
		}
	default:
		if i, ok := f.word("policy", "policy", policy.Names()); ok {
			s.Policy = policy.Names()[i]
		}
	}
}

// params tries every parameter for itself, so that each error has its line.
func (r *reader) params(f *form, s *Scenario) {
	p := spec{s.Policy, map[string]string{}}
	for _, key := range f.keys {
		if key.Value == "name" {
			continue
		}
		value, ok := f.scalar(key.Value, "a value")
		if !ok {
			continue
		}
		if _, err := policy.Choose(p.name, map[string]string{key.Value: value}); err != nil {
			f.wrong(key.Value, "%v", err)
			continue
		}
		p.params[key.Value] = value
	}
	s.Policy = p.String()
}

// daemon reads what an administrator may set of the scheduler, and how fast the
// daemon is.
func (r *reader) daemon(f *form, c *sim.Config) {
	n := f.get("daemon")
	if n == nil {
		return
	}
	df := r.form(n, "daemon")
	df.dist("hop", &c.Hop, 0, time.Second)
	floor := -1.0
	df.ratio("floor", &floor, 0, 0.5)
	switch {
	case floor == 0: // zero is the default to the scheduler, and none to a person
		c.Sched.Floor = -1
	case floor > 0:
		c.Sched.Floor = floor
	}
	df.duration("floor_turn", &c.Sched.FloorTurn, time.Millisecond, time.Minute)
	df.duration("stall_limit", &c.Sched.StallLimit, time.Millisecond, hour)
	df.done("the daemon")
}

func (r *reader) faults(f *form, v *sim.Faults) {
	n := f.get("faults")
	if n == nil {
		return
	}
	ff := r.form(n, "faults")
	ff.ratio("fail", &v.Fail, 0, 0.9)
	ff.ratio("doubt", &v.Doubt, 0, 0.9)
	ff.ratio("never", &v.Never, 0, 1)
	ff.ratio("late", &v.Late, 0, 1)
	ff.duration("late_by", &v.LateBy, 0, time.Minute)
	ff.ratio("lost", &v.Lost, 0, 1)
	ff.duration("crash", &v.Crash, time.Millisecond, longest)
	ff.duration("kill", &v.Kill, time.Millisecond, longest)
	if v.Late > 0 && v.LateBy == 0 {
		ff.need("late_by", "5ms")
	}
	ff.done("faults")
}
