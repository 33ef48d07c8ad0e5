package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

// ParamInfo describes a parameter of a policy.
type ParamInfo struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Range string `json:"range"`
	Doc   string `json:"doc"`
}

// params are the parameters of a policy. A policy embeds params and so has the
// methods Set and describe.
type params []param

type param struct {
	name, allowed, doc string
	get                func() string
	set                func(string) error
}

// Set changes one parameter. It changes nothing if it returns an error.
func (ps params) Set(name, value string) error {
	names := make([]string, 0, len(ps))
	for _, p := range ps {
		if p.name == name {
			if err := p.set(value); err != nil {
				return fmt.Errorf("parameter %s: %q is not %s", name, value, p.allowed)
			}
			return nil
		}
		names = append(names, p.name)
	}
	return fmt.Errorf("it has no parameter %q; it has: %s", name, strings.Join(names, ", "))
}

func (ps params) describe() []ParamInfo {
	infos := make([]ParamInfo, 0, len(ps))
	for _, p := range ps {
		infos = append(infos, ParamInfo{p.name, p.get(), p.allowed, p.doc})
	}
	return infos
}

var errRange = fmt.Errorf("out of range")

// durationParam is a duration from lo to hi. The value that v has now is its default.
func durationParam(name string, v *time.Duration, lo, hi time.Duration, doc string) param {
	return param{
		name: name, doc: doc, allowed: fmt.Sprintf("a duration from %v to %v", lo, hi),
		get: func() string { return v.String() },
		set: func(s string) error {
			d, err := time.ParseDuration(s)
			if err == nil && (d < lo || d > hi) {
				err = errRange
			}
			if err == nil {
				*v = d
			}
			return err
		},
	}
}

// quantumParam is the length of a turn or slice. It is at least 100 us: in shorter
// ones a device spends most of its time on context switches.
func quantumParam(name string, v *time.Duration, doc string) param {
	return durationParam(name, v, 100*time.Microsecond, 10*time.Second, doc)
}

// sliceParam is a time slice: a duration, or one of the words min and default.
func sliceParam(name string, v *time.Duration, doc string) param {
	const hi = 10 * time.Second
	p := durationParam(name, v, sched.MinSlice, hi, doc)
	p.allowed = fmt.Sprintf("min, default, or a duration up to %v", hi)
	get, set := p.get, p.set
	p.get = func() string {
		switch *v {
		case 0:
			return "default"
		case sched.MinSlice:
			return "min"
		}
		return get()
	}
	p.set = func(s string) error {
		switch s {
		case "default":
			*v = 0
		case "min":
			*v = sched.MinSlice
		default:
			return set(s)
		}
		return nil
	}
	return p
}

// intParam is a whole number from lo to hi.
func intParam(name string, v *int, lo, hi int, doc string) param {
	return param{
		name: name, doc: doc, allowed: fmt.Sprintf("a whole number from %d to %d", lo, hi),
		get: func() string { return strconv.Itoa(*v) },
		set: func(s string) error {
			n, err := strconv.Atoi(s)
			if err == nil && (n < lo || n > hi) {
				err = errRange
			}
			if err == nil {
				*v = n
			}
			return err
		},
	}
}
