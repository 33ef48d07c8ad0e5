package report

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/sim"
)

// param is a parameter of a device and its exact value.
type param struct{ Name, Value string }

// devices is devices with equal parameters.
type devices struct {
	ids   []string
	Model *sim.Model
}

// IDs returns the ids of the devices.
func (d *devices) IDs() string { return strings.Join(d.ids, ", ") }

// Params returns all parameters of the devices.
func (d *devices) Params() []param { return listParams(nil, "", reflect.ValueOf(*d.Model)) }

// Devices groups devices by their parameters.
func (v *view) Devices() []*devices {
	var all []*devices
	for i := range v.Outcome.Devices {
		d := &v.Outcome.Devices[i]
		same := func(of *devices) bool { return reflect.DeepEqual(*of.Model, d.Model) }
		if j := slices.IndexFunc(all, same); j >= 0 {
			all[j].ids = append(all[j].ids, string(d.ID))
		} else {
			all = append(all, &devices{[]string{string(d.ID)}, &d.Model})
		}
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
	case time.Duration:
		return format.ExactDuration(x)
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
