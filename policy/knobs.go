package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

// ParamInfo describes a parameter to a person.
type ParamInfo struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Range string `json:"range"`
	Doc   string `json:"doc"`
}

// knobs are the parameters of a policy. A policy embeds them, and with them the
// methods that the scheduler and the command line reach them by.
type knobs []knob

type knob struct {
	name, allowed, doc string
	get                func() string
	set                func(string) error
}

// Set implements sched.Tunable.
func (k knobs) Set(name, value string) error {
	names := make([]string, 0, len(k))
	for _, p := range k {
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

func (k knobs) params() []ParamInfo {
	infos := make([]ParamInfo, 0, len(k))
	for _, p := range k {
		infos = append(infos, ParamInfo{p.name, p.get(), p.allowed, p.doc})
	}
	return infos
}

var errRange = fmt.Errorf("out of range")

// durationKnob is a parameter from lo to hi; the value that v has now is its default.
func durationKnob(name string, v *time.Duration, lo, hi time.Duration, doc string) knob {
	return knob{
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

// quantumKnob is a turn or slice: nothing so short that the device would do
// nothing but switch.
func quantumKnob(name string, v *time.Duration, doc string) knob {
	return durationKnob(name, v, 100*time.Microsecond, 10*time.Second, doc)
}

// sliceKnob is a time slice: a duration, or one of the words min and default.
func sliceKnob(name string, v *time.Duration, doc string) knob {
	const hi = 10 * time.Second
	k := durationKnob(name, v, sched.MinSlice, hi, doc)
	k.allowed = fmt.Sprintf("min, default, or a duration up to %v", hi)
	get, set := k.get, k.set
	k.get = func() string {
		switch *v {
		case 0:
			return "default"
		case sched.MinSlice:
			return "min"
		}
		return get()
	}
	k.set = func(s string) error {
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
	return k
}

// intKnob is a whole number from lo to hi.
func intKnob(name string, v *int, lo, hi int, doc string) knob {
	return knob{
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
