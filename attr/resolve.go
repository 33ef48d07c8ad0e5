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
	v    [count]int64 // less the default
	from [count]Source
}

// Resolve merges the layers: for each attribute the value of the last source that gave
// one, or the default.
func Resolve(l *Layers) Resolved {
	var r Resolved
	for id := range count {
		for from := range l {
			if given := &l[from]; given.has&(1<<id) != 0 {
				r.v[id], r.from[id] = given.v[id]-table[id].Default, Source(from)
			}
		}
	}
	return r
}

// Int, Duration and Bool return the value of an attribute.
func (r Resolved) Int(id ID) int64              { return r.v[id] + table[id].Default }
func (r Resolved) Duration(id ID) time.Duration { return time.Duration(r.Int(id)) }
func (r Resolved) Bool(id ID) bool              { return r.Int(id) != 0 }

// Class returns the class.
func (r Resolved) Class() sched.Class { return sched.Class(r.Int(Class)) }

// Source returns where the value of an attribute came from.
func (r Resolved) Source(id ID) Source { return r.from[id] }

// Replace puts another value in place of an attribute's and leaves its source.
func (r *Resolved) Replace(id ID, value int64) { r.v[id] = value - table[id].Default }

// Given returns the attributes that a source gave, or that differ from the default.
func (r Resolved) Given() Values {
	var v Values
	for id := range count {
		if r.from[id] != FromDefault || r.v[id] != 0 {
			v.Set(id, r.Int(id))
		}
	}
	return v
}

// Public returns r with the defaults in place of what only the owner may see.
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
	var a sched.Attr
	for id := range count {
		if field := table[id].field; field != nil {
			put(field(&a), r.Int(id))
		}
	}
	return a
}

// Sched returns the attributes in the set that the scheduler and its policies read. The
// others are zero.
func (v Values) Sched() sched.Attr {
	var a sched.Attr
	for _, id := range v.IDs() {
		if field := table[id].field; field != nil {
			put(field(&a), v.v[id])
		}
	}
	return a
}

// FromSched returns the attributes in a that differ from the default.
func FromSched(a sched.Attr) Values {
	var v Values
	for id := range count {
		if field := table[id].field; field != nil {
			if x := get(field(&a)); x != 0 && x != table[id].Default {
				v.Set(id, x)
			}
		}
	}
	return v
}

// put stores a value in a field of sched.Attr.
func put(field any, v int64) {
	switch f := field.(type) {
	case *sched.Class:
		*f = sched.Class(v)
	case *sched.Time:
		*f = sched.Time(v)
	case *time.Duration:
		*f = time.Duration(v)
	case *int8:
		*f = int8(v)
	case *uint8:
		*f = uint8(v)
	case *int32:
		*f = int32(v)
	case *uint32:
		*f = uint32(v)
	case *bool:
		*f = v != 0
	}
}

// get reads a field of sched.Attr.
func get(field any) int64 {
	switch f := field.(type) {
	case *sched.Class:
		return int64(*f)
	case *sched.Time:
		return int64(*f)
	case *time.Duration:
		return int64(*f)
	case *int8:
		return int64(*f)
	case *uint8:
		return int64(*f)
	case *int32:
		return int64(*f)
	case *uint32:
		return int64(*f)
	case *bool:
		return truth(*f)
	}
	return 0
}
