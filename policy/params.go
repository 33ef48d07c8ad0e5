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

// params are the parameters of a policy, which embeds them.
type params []param

type param struct {
	name, allowed, doc string
	get                func() string
	set                func(string) (ok bool) // changes nothing if the value is not allowed
}

func (ps params) parameters() params { return ps }

// Params describes the parameters of a policy, with the values that they have.
func Params(p sched.Policy) []ParamInfo { return paramsOf(p).describe() }

// paramsOf returns the parameters of a policy, nil if it has none.
func paramsOf(p sched.Policy) params {
	if p, ok := p.(interface{ parameters() params }); ok {
		return p.parameters()
	}
	return nil
}

// set changes one parameter. It changes nothing if it returns an error.
func (ps params) set(name, value string) error {
	names := make([]string, 0, len(ps))
	for _, p := range ps {
		if p.name == name {
			if !p.set(value) {
				return fmt.Errorf("parameter %s: %q is not %s", name, value, p.allowed)
			}
			return nil
		}
		names = append(names, p.name)
	}
	if len(names) == 0 {
		return fmt.Errorf("it has no parameter %q; it has none", name)
	}
	return fmt.Errorf("it has no parameter %q; it has: %s", name, strings.Join(names, ", "))
}

func (ps params) describe() []ParamInfo {
	var infos []ParamInfo
	for _, p := range ps {
		infos = append(infos, ParamInfo{p.name, p.get(), p.allowed, p.doc})
	}
	return infos
}

// numberParam is a parameter from lo to hi. The value that v has now is its default.
func numberParam[T int | time.Duration](name string, v *T, kind string, lo, hi T, parse func(string) (T, error), doc string) param {
	return param{
		name: name, doc: doc, allowed: fmt.Sprintf("%s from %s to %s", kind, text(lo), text(hi)),
		get: func() string { return text(*v) },
		set: func(s string) bool {
			x, err := parse(s)
			if err != nil || x < lo || x > hi {
				return false
			}
			*v = x
			return true
		},
	}
}

// text returns a value as all commands write it: 500us, 10m, 1h.
func text(v any) string { return shortUnits.Replace(fmt.Sprint(v)) }

var shortUnits = strings.NewReplacer("h0m0s", "h", "m0s", "m", "µ", "u")

func intParam(name string, v *int, lo, hi int, doc string) param {
	return numberParam(name, v, "a whole number", lo, hi, strconv.Atoi, doc)
}

func durationParam(name string, v *time.Duration, lo, hi time.Duration, doc string) param {
	return numberParam(name, v, "a duration", lo, hi, time.ParseDuration, doc)
}

// quantumParam is the length of a turn or slice. It is at least 100 us: in shorter
// ones a device spends most of its time on context switches.
func quantumParam(name string, v *time.Duration, doc string) param {
	return durationParam(name, v, 100*time.Microsecond, 10*time.Second, doc)
}

// sliceParam is a time slice: a duration, or one of the words min and default.
func sliceParam(name string, v *time.Duration, doc string) param {
	p := durationParam(name, v, sched.MinSlice, 10*time.Second, doc)
	p.allowed = "min, default, or a duration up to 10s"
	words := map[string]time.Duration{"min": sched.MinSlice, "default": 0}
	get, set := p.get, p.set
	p.get = func() string {
		switch *v {
		case words["default"]:
			return "default"
		case words["min"]:
			return "min"
		}
		return get()
	}
	p.set = func(s string) bool {
		d, isWord := words[s]
		if isWord {
			*v = d
		}
		return isWord || set(s)
	}
	return p
}
