package scenario

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/sched"
)

func readClients(f *form, s *Scenario, open opener) {
	f.Need("clients", "[{name: train, class: batch, kernels: {time: 212us}}]")
	names := map[string]bool{}
	flight := 0
	f.List("clients", "client", maxClients, func(cf *form) {
		c := sim.ClientConfig{Name: "?"}
		count := 1
		cf.Ident("name", &c.Name)
		cf.Need("name", "train")
		cf.Count("count", &count, 1, maxClients)
		readClient(cf, &s.Config, &c, open)
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
}

func kernelsOf(c *sim.ClientConfig) int {
	n := 0
	for _, k := range c.Kernels {
		n += k.Count
	}
	return n
}

// readClient reads the fields of a client other than name and count.
func readClient(f *form, cfg *sim.Config, c *sim.ClientConfig, open opener) {
	c.Device = deviceOf(f, cfg)
	f.Ident("process", &c.Process)
	c.Attr = attr.ReadYAML(f, attr.ByScenario).Sched()
	f.Boolean("shim", &c.Shim)
	readArrival(f, cfg, &c.Arrival, open)
	readKernels(f, c)
	readTime(f, "before", &c.Before, 0, hour)
	readTime(f, "after", &c.After, 0, hour)
	f.Duration("prepare", &c.Prepare, 0, hour)
	f.Boolean("hint", &c.Hint)
	f.Duration("announce", &c.Announce, 0, hour)
	f.Count("park", &c.Park, 0, 16)
	f.Duration("lead", &c.Lead, 0, hour)
	f.Ratio("late_entry", &c.LateEntry, 0, 1)
	f.Ident("member_of", &c.Pool)
	readTime(f, "jitter", &c.Jitter, 0, hour)
	f.Duration("slice", &c.Slice, time.Microsecond, time.Minute)
	f.Duration("start", &c.Start, 0, maxLength)
	f.Duration("kill", &c.Kill, 0, maxLength)
	readTime(f, "lifetime", &c.Lifetime, time.Millisecond, maxLength)
	readTime(f, "downtime", &c.Downtime, time.Millisecond, maxLength)
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
	checkPool(f, cfg, c)
	if f.Has("slice") && c.Device >= 0 && len(cfg.Devices) > 0 && cfg.Devices[c.Device].Model.Slots != nil {
		f.Wrong("slice", "device %s of model %s has no slices", cfg.Devices[c.Device].ID, cfg.Devices[c.Device].Model.Name)
	}
}

// checkPool checks a client in a pool. The daemon sees the pool, not the client.
func checkPool(f *form, cfg *sim.Config, c *sim.ClientConfig) {
	switch {
	case c.Pool == "":
	case c.Device >= 0 && len(cfg.Devices) > 0 && cfg.Devices[c.Device].Model.Slots != nil:
		f.Wrong("member_of", "device %s of model %s has no pools", cfg.Devices[c.Device].ID, cfg.Devices[c.Device].Model.Name)
	case c.Attr.Class == sched.Online:
		f.Wrong("member_of", "a client of class online cannot be in a pool")
	case c.Process != "" || c.Shim || c.Attr.SLO > 0 || c.Hint || c.Announce > 0 || c.Park > 0 || c.LateEntry > 0:
		f.Wrong("member_of", "a client in a pool has no process, shim, slo, hint, announce, park or late_entry: the daemon sees only the pool")
	}
}

// deviceOf returns the index of the client's device.
func deviceOf(f *form, cfg *sim.Config) int {
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

// readArrival reads how requests arrive. The default is closed: the next request is sent
// when the last is answered.
func readArrival(client *form, cfg *sim.Config, a *sim.Arrival, open opener) {
	if !client.IsForm("arrival") {
		wanted := "one of closed, {closed: 5ms}, {periodic: 20ms}, {poisson: 100/s}, {trace: FILE}"
		if s, ok := client.Scalar("arrival", wanted); ok && s != "closed" {
			client.Wrong("arrival", "%q, where %s is wanted", yamlfile.Clip(s), wanted)
		}
		return
	}
	f := client.Form("arrival")
	if i := f.Kind("kind of arrival", arrivalNames); i >= 0 {
		a.Kind = sim.ArrivalKind(i)
	}
	switch name := arrivalNames[a.Kind]; a.Kind {
	case sim.Closed:
		f.Duration(name, &a.Every, 0, hour)
		f.Count("depth", &a.Depth, 1, 10_000)
		readTime(f, "jitter", &a.Jitter, 0, hour)
	case sim.Trace:
		a.Trace = readTrace(f, open)
	default:
		readPeriod(f, name, cfg, &a.Every)
	}
	f.Duration("offset", &a.Offset, 0, hour)
	for i := range a.Trace {
		a.Trace[i] += a.Offset // the simulator does not add the offset to a trace
	}
	f.Done("an arrival")
}

// readPeriod reads a period or a rate.
func readPeriod(f *form, name string, cfg *sim.Config, v *time.Duration) {
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

// readKernels reads one run of equal kernels, or a list of runs.
func readKernels(f *form, c *sim.ClientConfig) {
	f.Need("kernels", "{count: 160, time: 7us}")
	read := func(kf *form) {
		k := sim.Kernels{Count: 1}
		kf.Count("count", &k.Count, 1, maxKernels)
		readTime(kf, "time", &k.Time, 100*time.Nanosecond, hour)
		kf.Need("time", "212us")
		readTime(kf, "gap", &k.Gap, 0, hour)
		kf.Boolean("wait", &k.Wait)
		kf.Ratio("occupancy", &k.Occupancy, 0.001, 1)
		kf.Ratio("bandwidth", &k.Bandwidth, 0, 1)
		kf.Done("a run of kernels")
		c.Kernels = append(c.Kernels, k)
	}
	if f.IsForm("kernels") {
		read(f.Form("kernels"))
	} else {
		f.List("kernels", "run of kernels such as {time: 212us}", 10_000, read)
	}
	if total := kernelsOf(c); total > maxKernels {
		f.Wrong("kernels", "%d kernels per request; at most %d are allowed", total, maxKernels)
	}
}
