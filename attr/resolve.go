package attr

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// Source is where the value of an attribute came from. A later source overrides an
// earlier one.
type Source uint8

const (
	FromDefault Source = iota // the table
	FromProcess               // the process's own scheduling parameters on the CPU
	FromBackend               // the backend that found the process, such as a scenario
	FromRule                  // a rule of the configuration file
	FromRun                   // giveway run
	FromHint                  // the process itself, or giveway hint
	FromSet                   // giveway set, pause and resume
	sources
)

var sourceNames = []string{"default", "process", "backend", "rule", "run", "hint", "set"}

func (s Source) String() string { return sourceNames[s] }

// Sources lists the names of the sources in the order in which they override each other.
func Sources() []string { return slices.Clone(sourceNames) }

// ParseSource is the inverse of Source.String.
func ParseSource(name string) (Source, bool) {
	i := slices.Index(sourceNames, name)
	return Source(max(i, 0)), i >= 0
}

// Layers holds what each source gave to a process, indexed by Source.
type Layers [sources]Values

// Resolved is the value of every attribute of a process and its source. In the zero
// value every attribute is at its default. Values of Resolved can be compared with ==.
type Resolved struct {
	v    [count]int64 // value minus default
	from [count]Source
}

// Int, Duration and Bool return the value of an attribute.
func (r Resolved) Int(id ID) int64              { return r.v[id] + table[id].Default }
func (r Resolved) Duration(id ID) time.Duration { return time.Duration(r.Int(id)) }
func (r Resolved) Bool(id ID) bool              { return r.Int(id) != 0 }

// Class returns the class.
func (r Resolved) Class() sched.Class { return sched.Class(r.Int(Class)) }

// Source returns where the value of an attribute came from.
func (r Resolved) Source(id ID) Source { return r.from[id] }

// Replace changes the value of an attribute but not its source.
func (r *Resolved) Replace(id ID, value int64) { r.v[id] = value - table[id].Default }

// Given returns the attributes whose source or value is not the default.
func (r Resolved) Given() Values {
	var v Values
	for id := range count {
		if r.from[id] != FromDefault || r.v[id] != 0 {
			v.Set(id, r.Int(id))
		}
	}
	return v
}

// Public returns r with every attribute at its default that only the owner of the process
// may see.
func (r Resolved) Public() Resolved {
	var l Layers
	for _, id := range r.Given().IDs() {
		if table[id].Public {
			l[r.from[id]].Set(id, r.Int(id))
		}
	}
	return Resolve(&l)
}

// Sched returns the attributes that the scheduler and its policies read.
func (r Resolved) Sched() sched.Attr {
	var all Values
	for id := range count {
		all.Set(id, r.Int(id))
	}
	return all.Sched()
}

// Sched returns the attributes in the set that the scheduler and its policies read. The
// others are zero.
func (v Values) Sched() sched.Attr {
	var a sched.Attr
	for id := range count {
		if f := table[id].field; f != nil && v.Has(id) {
			f.put(&a, v.v[id])
		}
	}
	return a
}

// FromSched returns the attributes in a that differ from the default.
func FromSched(a sched.Attr) Values {
	var v Values
	for id := range count {
		if f := table[id].field; f != nil {
			if x := f.get(&a); x != 0 && x != table[id].Default {
				v.Set(id, x)
			}
		}
	}
	return v
}

// field reads and writes a field of sched.Attr.
type field struct {
	get func(*sched.Attr) int64
	put func(*sched.Attr, int64)
}

func number[T ~int8 | ~uint8 | ~int32 | ~uint32 | ~int64](at func(*sched.Attr) *T) *field {
	return &field{
		get: func(a *sched.Attr) int64 { return int64(*at(a)) },
		put: func(a *sched.Attr, v int64) { *at(a) = T(v) },
	}
}

func flag(at func(*sched.Attr) *bool) *field {
	return &field{
		get: func(a *sched.Attr) int64 { return truth(*at(a)) },
		put: func(a *sched.Attr, v int64) { *at(a) = v != 0 },
	}
}
