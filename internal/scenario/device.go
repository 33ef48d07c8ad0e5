package scenario

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
	"go.yaml.in/yaml/v3"
)

func (r *reader) devices(f *form, c *sim.Config) {
	f.need("devices", "[{model: nvidia-h200}]")
	known := map[sched.DeviceID]bool{}
	f.list("devices", mostDevices, func(n *yaml.Node, path string) {
		id := fmt.Sprintf("gpu%d", len(c.Devices))
		df := r.form(n, path)
		df.ident("id", &id)
		d := sim.DeviceConfig{ID: sched.DeviceID(id)}
		if known[d.ID] {
			df.wrong("id", "there is another device %q", id)
		}
		known[d.ID] = true
		names := sim.ModelNames()
		i, ok := df.word("model", "model", names)
		df.need("model", names[0])
		if ok {
			d.Model, _ = sim.NewModel(names[i]) // it is one of those there are
			r.model(df, &d.Model)
		}
		c.Devices = append(c.Devices, d)
	})
	if n := f.values["devices"]; n != nil && n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.wrong("devices", "no device")
	}
}

// model reads what a device has other than its model says.
func (r *reader) model(f *form, m *sim.Model) {
	switch {
	case m.Runlist != nil:
		l := m.Runlist
		f.duration("slice", &l.Slice, time.Microsecond, time.Minute)
		f.dist("switch", &l.Switch, 0, time.Second)
		f.duration("refill", &l.Refill, 0, time.Second)
		f.duration("notice", &l.Notice, 0, time.Second)
		f.duration("call_off", &l.CallOff, 0, time.Second)
		f.duration("min_turn", &l.MinTurn, 0, time.Minute)
	case m.Slots != nil:
		r.slots(f, m.Slots)
	}
	f.duration("eyes", &m.Eyes, 0, time.Minute)
	f.boolean("gated", &m.Gated)
	if w, ok := f.integer("window", 0, math.MaxUint32); ok {
		m.Window = uint32(w)
	}
	if n := f.get("calls"); n != nil {
		cf := r.form(n, f.path+"calls")
		cf.dist("stop", &m.Calls.Stop, 0, time.Minute)
		cf.dist("start", &m.Calls.Start, 0, time.Minute)
		if m.Runlist != nil {
			cf.dist("set_slice", &m.Calls.SetSlice, 0, time.Minute)
		}
		cf.dist("gate", &m.Calls.Gate, 0, time.Minute)
		cf.ratio("effect", &m.Calls.Effect, 0, 1)
		cf.done("calls")
	}
	f.done("a device of model " + m.Name)
}

// deactivateNames are in the order of sim.DeactivateKind.
var deactivateNames = []string{"none", "guardian", "hardware", "flush"}

func (r *reader) slots(f *form, s *sim.SlotsModel) {
	f.count("slots", &s.Slots, 1, 1024)
	f.duration("quantum", &s.Quantum, 0, time.Minute)
	if s.Quantum > 0 && s.Quantum < 10*time.Microsecond {
		f.wrong("quantum", "%s is neither 0 nor from 10us to 1m", short(s.Quantum))
	}
	f.boolean("interrupt", &s.Interrupt)
	f.boolean("everyone", &s.Everyone)
	f.boolean("batch", &s.Batch)
	if i, ok := f.word("deactivate", "way of deactivating", deactivateNames); ok {
		s.Deactivate = sim.DeactivateKind(i)
	}
	f.duration("guard", &s.Guard, 0, time.Second)
	f.duration("flush", &s.Flush, 0, time.Second)
	if n := f.get("context"); n != nil {
		cf := r.form(n, f.path+"context")
		cf.bytes("bytes", "185MB", &s.Context.Bytes)
		cf.bytes("bandwidth", "5.3TB/s", &s.Context.Bandwidth)
		cf.duration("fixed", &s.Context.Fixed, 0, time.Second)
		cf.ratio("selective", &s.Context.Selective, 0.001, 1)
		cf.ratio("async", &s.Context.Async, 0, 1)
		cf.ratio("compress", &s.Context.Compress, 0.001, 1)
		cf.ratio("lazy", &s.Context.Lazy, 0.001, 1)
		cf.done("a context")
		if save := s.Context.Save() + s.Context.Restore(); save < 0 || save > time.Minute {
			r.wrong(cf.at, f.path+"context", "it takes more than a minute to save and restore")
		}
	}
}

// bytes reads a size, or a bandwidth if the example is one.
func (f *form) bytes(name, example string, v *float64) {
	s, ok := f.scalar(name, "a size such as "+example)
	if !ok {
		return
	}
	size := s
	if strings.HasSuffix(example, "/s") {
		size = strings.TrimSuffix(s, "/s")
	}
	x, err := parseBytes(size)
	if err != nil || x < 1 {
		f.wrong(name, "%q is not a number and a unit, such as %s", clip(s), example)
		return
	}
	*v = x
}
