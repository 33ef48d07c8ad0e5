package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"go.yaml.in/yaml/v3"
)

func (r *reader) clients(f *form, s *Scenario) {
	f.Need("clients", "[{name: train, class: batch, kernels: {time: 212us}}]")
	names := map[string]bool{}
	flight := 0
	f.List("clients", maxClients, func(n *yaml.Node, path string) {
		cf := r.Form(n, path)
		c := sim.ClientConfig{Name: "?"}
		count := 1
		cf.Ident("name", &c.Name)
		cf.Need("name", "train")
		cf.Count("count", &count, 1, maxClients)
		r.client(cf, &s.Config, &c)
		renamed(cf, "program", "process", "life", "lifetime", "rest", "downtime")
		cf.Done("a client")
		all := &s.Config.Clients
		if len(*all)+count > maxClients {
			cf.Wrong("count", "%d clients in all; at most %d are allowed", len(*all)+count, maxClients)
			return
		}
		if flight += count * max(c.Arrival.Depth, 1) * kernelsOf(&c); flight > maxInFlight {
			cf.Wrong("kernels", "with this client, up to %d kernels are submitted at a time; at most %d are allowed", flight, maxInFlight)
		}
		s.Groups = append(s.Groups, Group{Name: c.Name, First: len(*all), Count: count})
		for i := range count {
			one := c
			if count > 1 {
				one.Name = fmt.Sprintf("%s-%d", c.Name, i+1)
			}
			if names[one.Name] && one.Name != "?" {
				cf.Wrong("name", "another client has the name %q", one.Name)
				break
			}
			names[one.Name] = true
			*all = append(*all, one)
		}
	})
	if n := f.Value("clients"); n != nil && n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.Wrong("clients", "the list is empty; want at least one client")
	}
}

func kernelsOf(c *sim.ClientConfig) int {
	n := 0
	for _, k := range c.Kernels {
		n += k.Count
	}
	return n
}

// client reads the fields of a client other than name and count.
func (r *reader) client(f *form, cfg *sim.Config, c *sim.ClientConfig) {
	c.Device = r.deviceOf(f, cfg)
	f.Ident("process", &c.Process)
	c.Attr = attr.ReadYAML(f, attr.ByScenario).Sched()
	f.Boolean("shim", &c.Shim)
	r.arrival(f, cfg, &c.Arrival)
	r.kernels(f, c)
	r.times(f, "before", &c.Before, 0, hour)
	r.times(f, "after", &c.After, 0, hour)
	f.Duration("prepare", &c.Prepare, 0, hour)
	f.Boolean("hint", &c.Hint)
	f.Duration("announce", &c.Announce, 0, hour)
	f.Count("park", &c.Park, 0, 16)
	f.Duration("lead", &c.Lead, 0, hour)
	f.Duration("slice", &c.Slice, time.Microsecond, time.Minute)
	f.Duration("start", &c.Start, 0, maxLength)
	f.Duration("kill", &c.Kill, 0, maxLength)
	r.times(f, "lifetime", &c.Lifetime, time.Millisecond, maxLength)
	r.times(f, "downtime", &c.Downtime, time.Millisecond, maxLength)
	switch {
	case f.Has("kill") && c.Kill <= c.Start:
		f.Wrong("kill", "%s is not after its start at %s", format.ExactDuration(c.Kill), format.ExactDuration(c.Start))
	case f.Has("lifetime") != f.Has("downtime"):
		f.Wrong("lifetime", "lifetime and downtime belong together: how long the queue exists, and how long until the next one is made")
	case f.Has("lifetime") && f.Has("kill"):
		f.Wrong("kill", "a client with a lifetime cannot be killed: it makes a new queue after each downtime")
	case c.Hint && c.Prepare == 0:
		f.Wrong("hint", "the hint is given when prepare begins, and prepare is missing; announce gives hints before arrivals")
	case f.Has("lead") && c.Park == 0:
		f.Wrong("lead", "lead is how long before a request kernels are parked, and park is missing")
	}
	if f.Has("slice") && c.Device >= 0 && len(cfg.Devices) > 0 && cfg.Devices[c.Device].Model.Slots != nil {
		f.Wrong("slice", "device %s of model %s has no slices", cfg.Devices[c.Device].ID, cfg.Devices[c.Device].Model.Name)
	}
}

// deviceOf returns the index of the client's device.
func (r *reader) deviceOf(f *form, cfg *sim.Config) int {
	ids := make([]string, len(cfg.Devices))
	for i, d := range cfg.Devices {
		ids[i] = string(d.ID)
	}
	if len(ids) > 1 {
		f.Need("device", ids[0])
	}
	i, _ := f.Word("device", "device", ids)
	return i
}

// arrivalNames are in the order of sim.ArrivalKind.
var arrivalNames = []string{"closed", "periodic", "poisson", "trace"}

// arrival reads how requests arrive. The default is closed: the next request is sent
// when the last is answered.
func (r *reader) arrival(f *form, cfg *sim.Config, a *sim.Arrival) {
	n := f.Get("arrival")
	if n == nil {
		return
	}
	path := f.Path("arrival")
	if n.Kind == yaml.ScalarNode && n.Value == "closed" {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.Wrong("arrival", "%s, where one of these is wanted: closed, {closed: 5ms}, {periodic: 20ms}, {poisson: 100/s}, {trace: FILE}", yamlfile.Kind(n))
		return
	}
	af := r.Form(n, path)
	given := 0
	for i, name := range arrivalNames {
		if !af.Has(name) {
			af.Ask(name)
			continue
		}
		given++
		a.Kind = sim.ArrivalKind(i)
		switch a.Kind {
		case sim.Closed:
			af.Duration(name, &a.Every, 0, hour)
		case sim.Trace:
			a.Trace = r.trace(af)
		default:
			r.every(af, name, cfg, &a.Every)
		}
	}
	af.Duration("offset", &a.Offset, 0, hour)
	if a.Kind == sim.Closed {
		af.Count("depth", &a.Depth, 1, 10_000)
	}
	before := r.Mistakes()
	af.Done("an arrival")
	for i := range a.Trace {
		a.Trace[i] += a.Offset // the simulator does not add the offset to a trace
	}
	switch {
	case given == 1 || r.Mistakes() > before:
	case given == 0:
		r.Wrong(n, path, "the kind of arrival is missing; there are: %s", strings.Join(arrivalNames, ", "))
	default:
		r.Wrong(n, path, "%d kinds, where one is wanted", given)
	}
}

// every reads a period or a rate.
func (r *reader) every(f *form, name string, cfg *sim.Config, v *time.Duration) {
	s, ok := f.Scalar(name, "a period such as 20ms or a rate such as 50/s")
	if !ok {
		return
	}
	d, err := parseEvery(s)
	switch {
	case err != nil:
		f.Wrong(name, "%q is neither a period such as 20ms nor a rate such as 50/s", yamlfile.Clip(s))
	case d < time.Microsecond || d > hour:
		f.Wrong(name, "%s is not from 1us to 1h between requests", s)
	case (cfg.Warmup+cfg.Length)/d > maxRequests:
		f.Wrong(name, "%s is more than %d requests in %s", s, maxRequests, format.ExactDuration(cfg.Warmup+cfg.Length))
	default:
		*v = d
	}
}

// kernels reads one run of equal kernels, or a list of runs.
func (r *reader) kernels(f *form, c *sim.ClientConfig) {
	f.Need("kernels", "{count: 160, time: 7us}")
	n := f.Get("kernels")
	if n == nil {
		return
	}
	read := func(n *yaml.Node, path string) {
		k := sim.Kernels{Count: 1}
		kf := r.Form(n, path)
		kf.Count("count", &k.Count, 1, maxKernels)
		r.times(kf, "time", &k.Time, 100*time.Nanosecond, hour)
		kf.Need("time", "212us")
		r.times(kf, "gap", &k.Gap, 0, hour)
		kf.Boolean("wait", &k.Wait)
		kf.Done("a run of kernels")
		c.Kernels = append(c.Kernels, k)
	}
	switch {
	case n.Kind == yaml.MappingNode:
		read(n, f.Path("kernels"))
	case n.Kind != yaml.SequenceNode:
		f.Wrong("kernels", "%s, where {time: 212us} or a list of such is wanted", yamlfile.Kind(n))
	case len(n.Content) == 0:
		f.Wrong("kernels", "the list is empty; want at least one run of kernels")
	default:
		f.Items(n, "kernels", 10_000, read)
	}
	if total := kernelsOf(c); total > maxKernels {
		f.Wrong("kernels", "%d kernels per request; at most %d are allowed", total, maxKernels)
	}
}
