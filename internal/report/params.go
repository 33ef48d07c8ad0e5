package report

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
)

// param is a setting and its exact value.
type param struct{ Name, Value string }

// deviceParams is everything a device was made of.
type deviceParams struct {
	Devices, Model, Doc string
	Params              []param
}

func settings(o *scenario.Outcome) []param {
	all := []param{
		{"seed", fmt.Sprint(o.Seed)},
		{"warm-up, not counted", o.Warmup.String()},
		{"counted", o.Length.String()},
	}
	if o.Wall <= 0 {
		return all
	}
	all = append(all, param{"took, in all", o.Wall.Round(time.Millisecond).String()})
	events := uint64(0)
	for i := range o.Runs {
		events += o.Runs[i].Result.Events
	}
	return append(all, param{"events simulated", integer(events)})
}

// devices of one make.
type sameModel struct {
	ids   []string
	model *sim.Model
}

// sameDevices puts devices with equal parameters together.
func sameDevices(devices []sim.DeviceConfig) []sameModel {
	var all []sameModel
next:
	for i := range devices {
		for j := range all {
			if reflect.DeepEqual(*all[j].model, devices[i].Model) {
				all[j].ids = append(all[j].ids, string(devices[i].ID))
				continue next
			}
		}
		all = append(all, sameModel{[]string{string(devices[i].ID)}, &devices[i].Model})
	}
	return all
}

func deviceTables(devices []sim.DeviceConfig) []deviceParams {
	var all []deviceParams
	for _, d := range sameDevices(devices) {
		t := deviceParams{Devices: strings.Join(d.ids, ", "), Model: d.model.Name, Doc: d.model.Doc}
		t.Params = list(nil, "", reflect.ValueOf(*d.model))
		all = append(all, t)
	}
	return all
}

// list walks a struct of parameters. It goes by what is there, so that one that
// is added to the model is in the report without being added here.
func list(all []param, prefix string, v reflect.Value) []param {
	for i := range v.NumField() {
		f, field := v.Field(i), v.Type().Field(i)
		if !field.IsExported() || prefix == "" && (field.Name == "Name" || field.Name == "Doc") {
			continue
		}
		name := prefix + spaced(field.Name)
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				continue
			}
			f = f.Elem()
		}
		if _, isDist := f.Interface().(sim.Dist); f.Kind() == reflect.Struct && !isDist {
			all = list(all, name+": ", f)
			continue
		}
		all = append(all, param{name, value(field.Name, f)})
	}
	return all
}

// spaced writes a field's name as words: MinTurn as min turn.
func spaced(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// value writes a parameter in full: it is to be used again.
func value(name string, v reflect.Value) string {
	switch x := v.Interface().(type) {
	case sim.Dist:
		return dist(x)
	case sim.DeactivateKind:
		return [...]string{"none", "guardian", "hardware", "flush"}[min(x, sim.FlushDeactivate)]
	case bool:
		if x {
			return "yes"
		}
		return "no"
	case float64:
		switch name {
		case "Bytes":
			return digits(x/1e6) + " MB"
		case "Bandwidth":
			return digits(x/1e9) + " GB/s"
		}
		return fmt.Sprint(x)
	}
	return fmt.Sprint(v.Interface())
}

// dist writes a distribution of times.
func dist(d sim.Dist) string {
	switch d.Kind {
	case sim.Uniform:
		return fmt.Sprintf("%v to %v, uniform", d.Min, d.Max)
	case sim.Normal:
		return fmt.Sprintf("%v ± %s, normal", d.Mean, percent(d.Jitter))
	case sim.LogNormal:
		return fmt.Sprintf("%v ± %s, lognormal", d.Mean, percent(d.Jitter))
	case sim.Exponential:
		return fmt.Sprintf("%v on average, exponential", d.Mean)
	}
	return d.Mean.String()
}
