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
)

func readDevices(f *form, c *sim.Config) {
	f.Need("devices", "[{model: nvidia-h200}]")
	known := map[sched.DeviceID]bool{}
	f.List("devices", "device", maxDevices, func(df *form) {
		id := fmt.Sprintf("gpu%d", len(c.Devices))
		df.Ident("id", &id)
		d := sim.DeviceConfig{ID: sched.DeviceID(id)}
		if known[d.ID] {
			df.Wrong("id", "another device has the id %q", id)
		}
		known[d.ID] = true
		names := sim.ModelNames()
		i, ok := df.Word("model", "model", names)
		df.Need("model", names[0])
		if ok {
			d.Model, _ = sim.NewModel(names[i]) // the name is valid
			readModel(df, &d.Model)
		}
		c.Devices = append(c.Devices, d)
	})
}

// readModel reads the parameters of a device that differ from its model.
func readModel(f *form, m *sim.Model) {
	switch {
	case m.Runlist != nil:
		l := m.Runlist
		f.Duration("slice", &l.Slice, time.Microsecond, time.Minute)
		readTime(f, "switch", &l.Switch, 0, time.Second)
		f.Duration("refill", &l.Refill, 0, time.Second)
		f.Duration("fetch", &l.Fetch, 0, time.Second)
		f.Duration("stay", &l.Stay, 0, time.Second)
		f.Duration("notice", &l.Notice, 0, time.Second)
		f.Duration("min_shared_slice", &l.MinSharedSlice, 0, time.Minute)
	case m.Slots != nil:
		readSlots(f, m.Slots)
	}
	f.Duration("trace_interval", &m.TraceInterval, 0, time.Minute)
	f.Boolean("gated", &m.Gated)
	if w, ok := f.Integer("bound", 0, math.MaxUint32); ok {
		m.Bound = uint32(w)
	}
	if cf := f.Form("calls"); cf != nil {
		readTime(cf, "stop", &m.Calls.Stop, 0, time.Minute)
		readTime(cf, "start", &m.Calls.Start, 0, time.Minute)
		if m.Runlist != nil {
			readTime(cf, "set_slice", &m.Calls.SetSlice, 0, time.Minute)
		}
		readTime(cf, "gate", &m.Calls.Gate, 0, time.Minute)
		cf.Ratio("effect", &m.Calls.Effect, 0, 1)
		if m.Slots != nil {
			cf.Duration("per_queue", &m.Calls.PerQueue, 0, time.Minute)
			readTime(cf, "after_stop", &m.Calls.AfterStop, 0, time.Minute)
			cf.Duration("copy_per_queue", &m.Calls.CopyPerQueue, 0, time.Minute)
		}
		renamed(cf, "each", "per_queue", "after", "after_stop", "copy", "copy_per_queue")
		cf.Done("calls")
	}
	renamed(f, "min_turn", "min_shared_slice", "eyes", "trace_interval", "window", "bound", "everyone", "remap_all", "guard", "flag_cost", "flush", "flush_cost")
	f.Done("a device of model " + m.Name)
}

// deactivateNames are in the order of sim.DeactivateKind.
var deactivateNames = []string{"none", "flag", "hardware", "flush"}

func readSlots(f *form, s *sim.SlotsModel) {
	f.Count("slots", &s.Slots, 1, 1024)
	f.Duration("quantum", &s.Quantum, 0, time.Minute)
	if s.Quantum > 0 && s.Quantum < 10*time.Microsecond {
		f.Wrong("quantum", "%s is neither 0 nor from 10us to 1m", format.ExactDuration(s.Quantum))
	}
	f.Boolean("interrupt", &s.Interrupt)
	f.Boolean("remap_all", &s.RemapAll)
	f.Boolean("batch", &s.Batch)
	if i, ok := f.Word("deactivate", "way of deactivating", deactivateNames); ok {
		s.Deactivate = sim.DeactivateKind(i)
	}
	f.Duration("flag_cost", &s.FlagCost, 0, time.Second)
	f.Duration("flush_cost", &s.FlushCost, 0, time.Second)
	if cf := f.Form("context"); cf != nil {
		bytesOf(cf, "bytes", "185MB", &s.Context.Bytes)
		bytesOf(cf, "bandwidth", "5.3TB/s", &s.Context.Bandwidth)
		cf.Duration("fixed", &s.Context.Fixed, 0, time.Second)
		cf.Ratio("selective", &s.Context.Selective, 0.001, 1)
		cf.Ratio("async", &s.Context.Async, 0, 1)
		cf.Ratio("compress", &s.Context.Compress, 0.001, 1)
		cf.Ratio("lazy", &s.Context.Lazy, 0.001, 1)
		cf.Done("a context")
		if save := s.Context.Save() + s.Context.Restore(); save < 0 || save > time.Minute {
			cf.Wrong("", "saving and restoring takes more than a minute")
		}
	}
}

// bytesOf reads a size, or a bandwidth if the example is a bandwidth.
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

// renamed makes Done point from field names of earlier versions to the new ones,
// given in pairs.
func renamed(f *form, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		f.Renamed(pairs[i], "write "+pairs[i+1])
	}
}
