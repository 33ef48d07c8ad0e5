package attr

import (
	"cmp"
	"slices"

	"github.com/giveway/giveway/sched"
)

// demand says which of two values of an attribute asks for more of the device.
type demand uint8

const (
	demandNone    demand = iota // neither: the attribute has no limit
	demandGreater               // the greater one
	demandSmaller               // the smaller one; 0, if it means none or unknown, asks for the least
	demandClass                 // the one that comes first in Classes
)

// Limits are the limits that the administrator sets on what users and processes ask for.
// They do not bound rules, nor values for which Unlimited was called.
type Limits struct {
	// Ceiling has, for each attribute that is limited, the most demanding value that run,
	// hint and set may give.
	Ceiling Values
	// HintsRaise lets a hint ask for more than the rule gives. Without it a process can
	// lower by hints what its rule gives, but not raise it.
	HintsRaise bool
	// HintsLower lets hints lower but not raise what the process has without them, whether or not a
	// rule gives it. It overrides HintsRaise.
	HintsLower bool
}

// Limitable lists the attributes that can be limited.
func Limitable() []ID {
	return slices.DeleteFunc(IDs(0), func(id ID) bool { return table[id].demand == demandNone })
}

// ReadLimits reads the attributes in a YAML mapping that can be limited.
func ReadLimits(f Form) Values {
	var v Values
	for _, id := range Limitable() {
		if x, ok := readYAML(f, id.Row()); ok {
			v.Set(id, x)
		}
	}
	return v
}

// Exceeds returns the first attribute in v that asks for more than the ceiling allows.
func (v Values) Exceeds(ceiling Values) (ID, bool) {
	for _, id := range v.IDs() {
		if v.free&(1<<id) == 0 && ceiling.Has(id) && table[id].asksForMore(v.v[id], ceiling.v[id]) {
			return id, true
		}
	}
	return 0, false
}

// Unlimited returns v without limits: Resolve does not bound its values, whatever source
// gives them. It is for values that the administrator gives.
func (v Values) Unlimited() Values {
	v.free = v.has
	return v
}

// Split returns the values that limits apply to and those for which Unlimited was called.
func (v Values) Split() (limited, unlimited Values) {
	for _, id := range v.IDs() {
		if v.free&(1<<id) == 0 {
			limited.Set(id, v.v[id])
		} else {
			unlimited.Set(id, v.v[id])
		}
	}
	return limited, unlimited.Unlimited()
}

// AtMost returns v with those values of next that v does not have, or that ask for less than
// its own.
func (v Values) AtMost(next Values) Values {
	for _, id := range next.IDs() {
		if !v.Has(id) || !table[id].asksForMore(next.v[id], v.v[id]) {
			v.Set(id, next.v[id])
		}
	}
	return v
}

// asksForMore reports whether a asks for more of the device than b.
func (r *Row) asksForMore(a, b int64) bool {
	switch r.demand {
	case demandGreater:
		return a > b
	case demandSmaller:
		unset := func(v int64) bool { return v == 0 && r.Zero != "" }
		return !unset(a) && (unset(b) || a < b)
	case demandClass:
		rank := func(v int64) int {
			return slices.IndexFunc(Classes(), func(c ClassInfo) bool { return c.Class == sched.Class(v) })
		}
		return cmp.Less(rank(a), rank(b))
	}
	return false
}

// Resolve merges the layers: for each attribute the value of the last source that gave
// one, or the default.
func Resolve(l *Layers) Resolved {
	r, _ := l.Within(&Limits{HintsRaise: true})
	return r
}

// Within merges the layers as Resolve does, within limits. A value of run, hint or set that
// asks for more than the ceiling becomes the ceiling, or what the administrator gives if
// that is more. A hint that asks for more than what the process has without it is left out
// if a rule gives the attribute, or if hints may only lower. reduced has the values that were asked for by the last
// source and are not in force.
func (l *Layers) Within(limits *Limits) (r Resolved, reduced Values) {
	for id := range count {
		row, ceiling := &table[id], limits.Ceiling.v[id]
		for from := range l {
			given := &l[from]
			if !given.Has(id) {
				continue
			}
			reduced.Remove(id)
			v, limited := given.v[id], Source(from) >= FromRun && given.free&(1<<id) == 0
			mayRaise := !limits.HintsLower && (limits.HintsRaise || !l[FromRule].Has(id))
			if limited && Source(from) == FromHint && !mayRaise && row.asksForMore(v, r.Int(id)) {
				reduced.Set(id, v)
				continue
			}
			if limited && limits.Ceiling.Has(id) && row.asksForMore(v, ceiling) {
				reduced.Set(id, v)
				v = ceiling
			}
			if !limited && Source(from) >= FromBackend && row.asksForMore(v, ceiling) {
				ceiling = v
			}
			r.v[id], r.from[id] = v-row.Default, Source(from)
		}
	}
	return r, reduced
}
