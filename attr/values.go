package attr

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

// Values is a set of attributes with a value each. Setting Values on a process leaves its
// other attributes unchanged. The zero value is empty. Values can be compared with ==.
//
// In a change, an attribute can also be cleared: the value that its source gave is taken back,
// and the value of an earlier source or the default is in force again. In text it is written
// default, in JSON null.
//
// Expect is a time from now in every input. The daemon stores the sched.Time at which it
// expects the request instead.
type Values struct {
	has  uint32 // one bit per ID
	free uint32 // of those, attributes without limits: see Unlimited
	none uint32 // attributes that are cleared
	v    [count]int64
}

var _ [32 - count]struct{} // has is large enough

// Of returns a set with this one attribute. It does not check the value.
func (id ID) Of(v int64) Values {
	var out Values
	out.Set(id, v)
	return out
}

// Set adds an attribute to the set, or changes its value. It does not check the value.
func (v *Values) Set(id ID, value int64) {
	v.Remove(id)
	v.has |= 1 << id
	v.v[id] = value
}

// Clear adds to the set that an attribute is cleared.
func (v *Values) Clear(id ID) {
	v.Remove(id)
	v.none |= 1 << id
}

// Clears reports whether an attribute is cleared.
func (v Values) Clears(id ID) bool { return v.none&(1<<id) != 0 }

// Remove takes an attribute out of the set.
func (v *Values) Remove(id ID) {
	v.has &^= 1 << id
	v.free &^= 1 << id
	v.none &^= 1 << id
	v.v[id] = 0
}

// Get returns the value of an attribute and whether it is in the set.
func (v Values) Get(id ID) (value int64, ok bool) { return v.v[id], v.Has(id) }

// Has reports whether an attribute is in the set.
func (v Values) Has(id ID) bool { return v.has&(1<<id) != 0 }

// Empty reports whether the set has no attribute and clears none.
func (v Values) Empty() bool { return v.has|v.none == 0 }

// IDs lists the attributes in the set.
func (v Values) IDs() []ID { return idsOf(v.has) }

// Changes lists the attributes in the set and those that are cleared.
func (v Values) Changes() []ID { return idsOf(v.has | v.none) }

func idsOf(bits uint32) (ids []ID) {
	for id := range count {
		if bits&(1<<id) != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// With returns v with the values of next in place of its own, and without those that next
// clears.
func (v Values) With(next Values) Values {
	for id := range count {
		switch {
		case next.Has(id):
			v.Set(id, next.v[id])
			v.free |= next.free & (1 << id)
		case next.Clears(id):
			v.Remove(id)
		}
	}
	return v
}

// Check returns an error if an attribute in the set cannot be set in all of the given ways,
// is out of range, or contradicts another. Only what set and hint gave can be cleared.
func (v Values) Check(way Way) error {
	for _, id := range v.Changes() {
		r := id.Row()
		switch {
		case r.Ways&way != way:
			return fmt.Errorf("%s cannot be set by %v, only by: %v", r.Name, way, r.Ways)
		case !v.Clears(id):
			if err := r.check(v.v[id]); err != nil {
				return err
			}
		case way != BySet && way != ByHint:
			return fmt.Errorf("%s default takes back what 'giveway set' or 'giveway hint' gave: it is for these only", r.Name)
		}
	}
	if v.v[Bound] > 0 && v.v[BoundBatch] > v.v[Bound] {
		return fmt.Errorf("bound-batch %d is more than bound %d", v.v[BoundBatch], v.v[Bound])
	}
	return v.checkClass()
}

// checkClass returns an error if an attribute is asked for that has no effect in the class that
// is set with it.
func (v Values) checkClass() error {
	class := sched.Class(v.v[Class])
	if Mode(v.v[Pool]) == ModeOn && v.Has(Class) && class != sched.Batch {
		return fmt.Errorf("a pool is for class batch only, not for %v: choose that class, or leave pool out", class)
	}
	if !v.Has(Class) || class == sched.Online {
		return nil
	}
	for _, id := range v.IDs() {
		if r := id.Row(); r.Online && v.v[id] > r.Default {
			return fmt.Errorf("%s is for class online only, not for %v: choose that class, or leave %[1]s out", r.Name, class)
		}
	}
	return nil
}

// clearText is the value of an attribute that is cleared, as people write it.
const clearText = "default"

// ParseInto reads a value of an attribute into the set: as Row.Parse does, or default to clear
// it.
func (v *Values) ParseInto(id ID, text string) error {
	if strings.TrimSpace(text) == clearText {
		v.Clear(id)
		return nil
	}
	x, err := id.Row().Parse(text)
	if err == nil {
		v.Set(id, x)
	}
	return err
}

// Parse reads a set such as "class=online slo=10ms", or "class=default" to clear one.
func Parse(text string) (Values, error) {
	var v Values
	for pair := range strings.FieldsSeq(text) {
		name, value, ok := strings.Cut(pair, "=")
		id, known := byName(name)
		if !ok || !known {
			return Values{}, fmt.Errorf("%q is not an attribute and its value, such as class=batch", pair)
		}
		if err := v.ParseInto(id, value); err != nil {
			return Values{}, err
		}
	}
	return v, nil
}

// Must is Parse for text that is known to be valid. It panics on an error.
func Must(text string) Values {
	v, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return v
}

// String returns the set as Parse reads it.
func (v Values) String() string {
	var pairs []string
	for _, id := range v.Changes() {
		text := clearText
		if v.Has(id) {
			text = id.Row().Format(v.v[id])
		}
		pairs = append(pairs, id.String()+"="+text)
	}
	return strings.Join(pairs, " ")
}

// MarshalJSON writes an object with the key of each attribute in the set; null is one that is
// cleared.
func (v Values) MarshalJSON() ([]byte, error) {
	var pairs []string
	for _, id := range v.Changes() {
		text := "null"
		if v.Has(id) {
			text = id.Row().toJSON(v.v[id])
		}
		pairs = append(pairs, fmt.Sprintf("%q:%s", id.Row().Key, text))
	}
	return []byte("{" + strings.Join(pairs, ",") + "}"), nil
}

// UnmarshalJSON reads what MarshalJSON writes. It refuses keys of no attribute and
// values out of range.
func (v *Values) UnmarshalJSON(data []byte) error {
	rest, err := v.ReadJSON(data)
	if err != nil {
		return err
	}
	for _, key := range rest {
		return fmt.Errorf("there is no attribute %q", key)
	}
	return nil
}

// ReadJSON reads the attributes in an object and returns its other keys, in no order.
func (v *Values) ReadJSON(data []byte) (rest []string, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	*v = Values{}
	for key, raw := range fields { //shape:unordered each sets an attribute of its own
		id, known := byKey(key)
		switch {
		case !known:
			rest = append(rest, key)
		case string(raw) == "null":
			v.Clear(id)
		default:
			x, err := id.Row().fromJSON(raw)
			if err != nil {
				return nil, err
			}
			v.Set(id, x)
		}
	}
	return rest, nil
}

// Form is a mapping of a YAML file, as package yamlfile reads it. Its methods record the
// errors of a field.
type Form interface {
	Has(name string) bool
	Word(name, what string, allowed []string) (index int, ok bool)
	Integer(name string, lo, hi int64) (int64, bool)
	Duration(name string, v *time.Duration, lo, hi time.Duration)
	Boolean(name string, v *bool)
	Scalar(name, wanted string) (string, bool)
	Wrong(name, format string, args ...any)
}

// ReadYAML reads the attributes in a mapping that can be set in all of the given ways.
func ReadYAML(f Form, way Way) Values {
	var v Values
	for _, id := range IDs(way) {
		if x, ok := readYAML(f, id.Row()); ok {
			v.Set(id, x)
		}
	}
	return v
}

func readYAML(f Form, r *Row) (int64, bool) {
	name := r.YAML()
	switch r.Type {
	case TypeClass:
		i, ok := f.Word(name, r.Name, ClassNames())
		return int64(Classes()[i].Class), ok
	case TypeWord:
		i, ok := f.Word(name, r.Name, r.Words)
		return int64(i), ok
	case TypeInteger:
		return f.Integer(name, r.Min, r.Max)
	case TypeDuration:
		var d time.Duration
		f.Duration(name, &d, time.Duration(r.Min), time.Duration(r.Max))
		return int64(d), f.Has(name)
	case TypeBool:
		var b bool
		f.Boolean(name, &b)
		return truth(b), f.Has(name)
	}
	text, ok := f.Scalar(name, r.Takes())
	if !ok {
		return 0, false
	}
	x, err := r.Parse(text)
	if err != nil {
		f.Wrong(name, "%q is not %s", printable(text), r.Takes())
	}
	return x, err == nil
}
