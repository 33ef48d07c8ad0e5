package report

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
)

// param is a setting and its exact value.
type param struct{ Name, Value string }

// deviceParams is all parameters of devices that are alike.
type deviceParams struct {
	Devices, Model, Doc string
	Params              []param
}

func settings(o *scenario.Outcome) []param {
	all := []param{
		{"seed", fmt.Sprint(o.Seed)},
		{"warm-up, not counted", format.ExactDuration(o.Warmup)},
		{"counted", format.ExactDuration(o.Length)},
	}
	if o.Wall > 0 {
		all = append(all, param{"real time of all runs", format.ExactDuration(o.Wall.Round(time.Millisecond))})
	}
	return all
}

// sameModel is devices with equal parameters.
type sameModel struct {
	ids   []string
	model *sim.Model
}

// sameDevices groups devices by their parameters.
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
		t.Params = listParams(nil, "", reflect.ValueOf(*d.model))
		all = append(all, t)
	}
	return all
}

// listParams walks a struct of parameters by reflection, so that a parameter that
// is added to the model appears in the report.
func listParams(all []param, prefix string, v reflect.Value) []param {
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
			all = listParams(all, name+": ", f)
			continue
		}
		all = append(all, param{name, value(field.Name, f)})
	}
	return all
}

// spaced writes a field's name as words: min turn for MinTurn.
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

// value writes a parameter in full, so that it can be copied into a scenario.
func value(name string, v reflect.Value) string {
	switch x := v.Interface().(type) {
	case sim.Dist:
		return dist(x)
	case sim.DeactivateKind:
		return [...]string{"none", "flag", "hardware", "flush"}[min(x, sim.FlushDeactivate)]
	case bool:
		if x {
			return "yes"
		}
		return "no"
	case float64:
		switch name {
		case "Bytes":
			return format.Number(x/1e6) + "MB"
		case "Bandwidth":
			return format.Number(x/1e9) + "GB/s"
		}
		return fmt.Sprint(x)
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return format.ExactDuration(d)
	}
	return fmt.Sprint(v.Interface())
}

// dist writes a distribution of times as a scenario file does.
func dist(d sim.Dist) string {
	mean := format.ExactDuration(d.Mean)
	jitter := strconv.FormatFloat(100*d.Jitter, 'g', -1, 64) + "%"
	switch d.Kind {
	case sim.Uniform:
		return fmt.Sprintf("uniform: %s to %s", format.ExactDuration(d.Min), format.ExactDuration(d.Max))
	case sim.Normal:
		return fmt.Sprintf("normal: %s, jitter %s", mean, jitter)
	case sim.LogNormal:
		return fmt.Sprintf("lognormal: %s, jitter %s", mean, jitter)
	case sim.Exponential:
		return "exponential: " + mean
	}
	return mean
}
