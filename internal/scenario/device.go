package scenario

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/sched"
	"go.yaml.in/yaml/v3"
)

func (r *reader) devices(f *form, c *sim.Config) {
	f.Need("devices", "[{model: nvidia-h200}]")
	known := map[sched.DeviceID]bool{}
	f.List("devices", mostDevices, func(n *yaml.Node, path string) {
		id := fmt.Sprintf("gpu%d", len(c.Devices))
		df := r.Form(n, path)
		df.Ident("id", &id)
		d := sim.DeviceConfig{ID: sched.DeviceID(id)}
		if known[d.ID] {
			df.Wrong("id", "there is another device %q", id)
		}
		known[d.ID] = true
		names := sim.ModelNames()
		i, ok := df.Word("model", "model", names)
		df.Need("model", names[0])
		if ok {
			d.Model, _ = sim.NewModel(names[i]) // it is one of those there are
			r.model(df, &d.Model)
		}
		c.Devices = append(c.Devices, d)
	})
	if n := f.Value("devices"); n != nil && n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.Wrong("devices", "no device")
	}
}

// model reads what a device has other than its model says.
func (r *reader) model(f *form, m *sim.Model) {
	switch {
	case m.Runlist != nil:
		l := m.Runlist
		f.Duration("slice", &l.Slice, time.Microsecond, time.Minute)
		r.times(f, "switch", &l.Switch, 0, time.Second)
		f.Duration("refill", &l.Refill, 0, time.Second)
		f.Duration("stay", &l.Stay, 0, time.Second)
		f.Duration("notice", &l.Notice, 0, time.Second)
		f.Duration("call_off", &l.CallOff, 0, time.Second)
		f.Duration("min_turn", &l.MinSharedSlice, 0, time.Minute)
	case m.Slots != nil:
		r.slots(f, m.Slots)
	}
	f.Duration("eyes", &m.TraceInterval, 0, time.Minute)
	f.Boolean("gated", &m.Gated)
	if w, ok := f.Integer("window", 0, math.MaxUint32); ok {
		m.Bound = uint32(w)
	}
	if n := f.Get("calls"); n != nil {
		cf := r.Form(n, f.Path("calls"))
		r.times(cf, "stop", &m.Calls.Stop, 0, time.Minute)
		r.times(cf, "start", &m.Calls.Start, 0, time.Minute)
		if m.Runlist != nil {
			r.times(cf, "set_slice", &m.Calls.SetSlice, 0, time.Minute)
		}
		r.times(cf, "gate", &m.Calls.Gate, 0, time.Minute)
		cf.Ratio("effect", &m.Calls.Effect, 0, 1)
		if m.Slots != nil {
			cf.Duration("each", &m.Calls.PerQueue, 0, time.Minute)
			r.times(cf, "after", &m.Calls.AfterStop, 0, time.Minute)
			cf.Duration("copy", &m.Calls.CopyPerQueue, 0, time.Minute)
		}
		cf.Done("calls")
	}
	f.Done("a device of model " + m.Name)
}

// deactivateNames are in the order of sim.DeactivateKind.
var deactivateNames = []string{"none", "guardian", "hardware", "flush"}

func (r *reader) slots(f *form, s *sim.SlotsModel) {
	f.Count("slots", &s.Slots, 1, 1024)
	f.Duration("quantum", &s.Quantum, 0, time.Minute)
	if s.Quantum > 0 && s.Quantum < 10*time.Microsecond {
		f.Wrong("quantum", "%s is neither 0 nor from 10us to 1m", format.ExactDuration(s.Quantum))
	}
	f.Boolean("interrupt", &s.Interrupt)
	f.Boolean("everyone", &s.RemapAll)
	f.Boolean("batch", &s.Batch)
	if i, ok := f.Word("deactivate", "way of deactivating", deactivateNames); ok {
		s.Deactivate = sim.DeactivateKind(i)
	}
	f.Duration("guard", &s.FlagCost, 0, time.Second)
	f.Duration("flush", &s.FlushCost, 0, time.Second)
	if n := f.Get("context"); n != nil {
		cf := r.Form(n, f.Path("context"))
		bytesOf(cf, "bytes", "185MB", &s.Context.Bytes)
		bytesOf(cf, "bandwidth", "5.3TB/s", &s.Context.Bandwidth)
		cf.Duration("fixed", &s.Context.Fixed, 0, time.Second)
		cf.Ratio("selective", &s.Context.Selective, 0.001, 1)
		cf.Ratio("async", &s.Context.Async, 0, 1)
		cf.Ratio("compress", &s.Context.Compress, 0.001, 1)
		cf.Ratio("lazy", &s.Context.Lazy, 0.001, 1)
		cf.Done("a context")
		if save := s.Context.Save() + s.Context.Restore(); save < 0 || save > time.Minute {
			r.Wrong(cf.At(), f.Path("context"), "it takes more than a minute to save and restore")
		}
	}
}

// bytesOf reads a size, or a bandwidth if the example is one.
func bytesOf(f *form, name, example string, v *float64) {
	s, ok := f.Scalar(name, "a size such as "+example)
	if !ok {
		return
	}
	size := s
	if strings.HasSuffix(example, "/s") {
		size = strings.TrimSuffix(s, "/s")
	}
	x, err := parseBytes(size)
	if err != nil || x < 1 {
		f.Wrong(name, "%q is not a number and a unit, such as %s", yamlfile.Clip(s), example)
		return
	}
	*v = x
}
