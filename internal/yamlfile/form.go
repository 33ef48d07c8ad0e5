package yamlfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"go.yaml.in/yaml/v3"
)

// describe describes n in an error.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a set of fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case typeOf(n) == null:
		return "nothing"
	}
	return strconv.Quote(Clip(n.Value))
}

// Clip shortens a value that is quoted in an error.
func Clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}

// plain returns a clipped text, in quotes if it has characters that are not printable.
func plain(s string) string {
	s = Clip(s)
	if quoted := strconv.Quote(s); strings.Contains(quoted, `\`) {
		return quoted
	}
	return s
}

// scalarType is the type that YAML gives to a scalar.
type scalarType string

const (
	text    scalarType = "a text"
	number  scalarType = "a number"
	boolean scalarType = "a boolean"
	date    scalarType = "a date"
	null    scalarType = "nothing"
	other   scalarType = "a value of an unknown type"
)

// typeOf returns the type of a scalar. A number that is too large for a float, such
// as -1e999, is a number here, though the YAML package takes it for a text.
func typeOf(n *yaml.Node) scalarType {
	switch n.Tag {
	case "!!str":
		if _, err := strconv.ParseFloat(n.Value, 64); n.Style == 0 && errors.Is(err, strconv.ErrRange) {
			return number
		}
		return text
	case "!!int", "!!float":
		return number
	case "!!bool":
		return boolean
	case "!!timestamp":
		return date
	case "!!null":
		return null
	}
	return other
}

// Form is a mapping that is read field by field. It records which fields it was
// asked for, so that Done can refuse all others.
type Form struct {
	doc    *document
	at     *yaml.Node
	path   string // of the mapping, followed by a dot; empty for the top of the file
	keys   []*yaml.Node
	values map[string]*yaml.Node
	asked  []string
	former map[string]string // fields that were renamed, and what to write instead
	broken bool              // it is not a mapping: missing fields are not reported

	kind  string   // what kinds are kinds of
	kinds []string // fields of which the mapping must have one
}

// form returns the fields of n, which must be a mapping. path is its name in errors,
// empty for the top of the file.
func (d *document) form(n *yaml.Node, path string) *Form {
	n = d.follow(n, path)
	f := &Form{doc: d, at: n, values: map[string]*yaml.Node{}}
	if path != "" {
		f.path = path + "."
	}
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "%s, where a set of fields is wanted", describe(n))
		f.broken = true
		return f
	}
	for i := 0; i+1 < len(n.Content) && !d.full(); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			d.wrong(key, path, "%s, where the name of a field is wanted", describe(d.follow(key, path)))
			f.broken = true
			continue
		}
		if f.values[key.Value] != nil {
			d.wrong(key, f.path+plain(key.Value), "given twice")
			continue
		}
		f.keys = append(f.keys, key)
		f.values[key.Value] = n.Content[i+1]
	}
	return f
}

// Err returns the mistakes in the whole file, in its order, or nil.
func (f *Form) Err() error {
	if len(f.doc.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(f.doc.errs, func(a, b Error) int { return a.Line - b.Line })
	return f.doc.errs
}

// Mistakes returns the number of mistakes in the whole file so far.
func (f *Form) Mistakes() int { return len(f.doc.errs) }

// Line returns the line of the mapping.
func (f *Form) Line() int { return f.at.Line }

// Renamed makes Done refuse a field of an earlier version with what to write instead.
func (f *Form) Renamed(old, instead string) {
	if f.former == nil {
		f.former = map[string]string{}
	}
	f.former[old] = instead
}

// Done refuses the fields that no call asked for. what is the thing that has the
// fields, such as "a client".
func (f *Form) Done(what string) {
	before, given := f.Mistakes(), 0
	for _, key := range f.keys {
		if slices.Contains(f.kinds, key.Value) {
			given++
		}
		field := f.path + plain(key.Value)
		switch instead := f.former[key.Value]; {
		case slices.Contains(f.asked, key.Value):
		case instead != "":
			f.doc.wrong(key, field, "%s has no field %s any more: %s", what, key.Value, instead)
		default:
			f.doc.wrong(key, field, "%s has no such field; %s", what, OneOf(key.Value, f.asked))
		}
	}
	switch {
	case f.kind == "" || given == 1 || f.Mistakes() > before:
	case given == 0:
		f.Wrong("", "the %s is missing; there are: %s", f.kind, strings.Join(f.kinds, ", "))
	default:
		f.Wrong("", "%d fields that say the %s, where one is wanted", given, f.kind)
	}
}

// Kind returns the index of the first of the fields that the mapping has, or -1. Done
// refuses the mapping unless it has exactly one. what is what the fields are kinds of.
func (f *Form) Kind(what string, fields []string) int {
	f.kind, f.kinds = what, fields
	f.asked = append(f.asked, fields...)
	return slices.IndexFunc(fields, f.Has)
}

// Wrong records a mistake in a field, or in the mapping if it has no such field.
func (f *Form) Wrong(name, format string, args ...any) {
	n := f.at
	if v := f.values[name]; v != nil {
		n = v
	}
	f.doc.wrong(n, strings.TrimSuffix(f.path+name, "."), format, args...)
}

// get returns the value of a field, or nil if there is no such field.
func (f *Form) get(name string) *yaml.Node {
	if !slices.Contains(f.asked, name) {
		f.asked = append(f.asked, name)
	}
	n := f.values[name]
	if n == nil || f.doc.full() {
		return nil
	}
	return f.doc.follow(n, f.path+name)
}

// Has reports whether the mapping has a field.
func (f *Form) Has(name string) bool { return f.values[name] != nil }

// IsForm reports whether a field holds a mapping.
func (f *Form) IsForm(name string) bool {
	n := f.get(name)
	return n != nil && n.Kind == yaml.MappingNode
}

// Form returns a field that holds a mapping, or nil if there is no such field.
func (f *Form) Form(name string) *Form {
	if n := f.get(name); n != nil {
		return f.doc.form(n, f.path+name)
	}
	return nil
}

// Need records a mistake if the mapping does not have a field.
func (f *Form) Need(name, example string) {
	if !f.broken && !f.Has(name) {
		f.Wrong("", "%s is missing; for example %s: %s", name, name, example)
	}
}

// scalar returns a field that holds a single value.
func (f *Form) scalar(name, wanted string) *yaml.Node {
	n := f.get(name)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.ScalarNode || typeOf(n) == null || typeOf(n) == other {
		f.Wrong(name, "%s, where %s is wanted", describe(n), wanted)
		return nil
	}
	return n
}

// Scalar returns a field that holds a single value of any type, as it is written.
func (f *Form) Scalar(name, wanted string) (string, bool) {
	if n := f.scalar(name, wanted); n != nil {
		return n.Value, true
	}
	return "", false
}

// String returns a field that holds a text.
func (f *Form) String(name, wanted string) (string, bool) {
	n := f.scalar(name, wanted)
	if n == nil {
		return "", false
	}
	if t := typeOf(n); t != text {
		f.Wrong(name, "%s is %s, where %s is wanted; to use it as a text, quote it: %q", Clip(n.Value), t, wanted, Clip(n.Value))
		return "", false
	}
	return n.Value, true
}

// typed returns a field that holds a value of type t. wanted describes the value.
func (f *Form) typed(name string, t scalarType, wanted string) (string, bool) {
	n := f.scalar(name, wanted)
	switch {
	case n == nil:
		return "", false
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		f.Wrong(name, "%q in quotes is a text, where %s is wanted; remove the quotes", Clip(n.Value), wanted)
		return "", false
	case typeOf(n) != t:
		f.Wrong(name, "%q is not %s", Clip(n.Value), wanted)
		return "", false
	}
	return n.Value, true
}

// Text reads a text of up to 4096 bytes.
func (f *Form) Text(name string, v *string) {
	if s, ok := f.String(name, "a text"); ok {
		if len(s) > 4096 {
			f.Wrong(name, "longer than 4096 bytes")
			return
		}
		*v = strings.TrimSpace(s)
	}
}

// Ident reads a name that can be part of a table, a path and a web page.
func (f *Form) Ident(name string, v *string) {
	s, ok := f.String(name, "a name")
	if !ok {
		return
	}
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+"
	if s == "" || len(s) > 40 || strings.Trim(s, plain) != "" {
		f.Wrong(name, "%q is not a name of up to 40 letters, digits, and - _ . +", Clip(s))
		return
	}
	*v = s
}

// IdentOrIndex reads a name, or a number from 0.
func (f *Form) IdentOrIndex(name string, v *string) {
	n := f.values[name]
	if n != nil && typeOf(f.doc.follow(n, f.path+name)) == number {
		if i, ok := f.Integer(name, 0, 1<<31); ok {
			*v = strconv.FormatInt(i, 10)
		}
		return
	}
	f.Ident(name, v)
}

// Word reads one of the allowed words and returns its index.
func (f *Form) Word(name, what string, allowed []string) (int, bool) {
	s, ok := f.Scalar(name, what)
	if !ok {
		return 0, false
	}
	if i := slices.Index(allowed, s); i >= 0 {
		return i, true
	}
	f.Wrong(name, "there is no %s %q; %s", what, Clip(s), OneOf(s, allowed))
	return 0, false
}

// Choice reads one of the allowed words, or a mapping of its name and parameters:
// rr, or {name: rr, quantum: 5ms}. It calls check for each parameter separately, so
// that each error has its line, and returns the parameters that are correct.
func (f *Form) Choice(name, what string, allowed []string, check func(word, param, value string) error) (word string, params map[string]string, ok bool) {
	n := f.get(name)
	if n == nil {
		return "", nil, false
	}
	if n.Kind != yaml.MappingNode {
		i, ok := f.Word(name, what, allowed)
		return allowed[i], nil, ok
	}
	m := f.doc.form(n, f.path+name)
	m.Need("name", allowed[0])
	i, ok := m.Word("name", what, allowed)
	if !ok {
		return "", nil, false
	}
	params = map[string]string{}
	for _, key := range m.keys {
		if key.Value == "name" {
			continue
		}
		if value, ok := m.Scalar(key.Value, "a value"); !ok {
			continue
		} else if err := check(allowed[i], key.Value, value); err != nil {
			m.Wrong(key.Value, "%v", err)
		} else {
			params[key.Value] = value
		}
	}
	return allowed[i], params, true
}

// Boolean reads true or false.
func (f *Form) Boolean(name string, v *bool) {
	s, ok := f.typed(name, boolean, "true or false")
	switch {
	case !ok:
	case s == "true" || s == "false":
		*v = s == "true"
	default:
		f.Wrong(name, "%q is not true or false", Clip(s))
	}
}

// Integer reads a whole number from lo to hi.
func (f *Form) Integer(name string, lo, hi int64) (int64, bool) {
	wanted := fmt.Sprintf("a whole number from %d to %d", lo, hi)
	s, ok := f.typed(name, number, wanted)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil || n < lo || n > hi {
		f.Wrong(name, "%q is not %s", Clip(s), wanted)
		return 0, false
	}
	return n, true
}

// Count reads a whole number from lo to hi.
func (f *Form) Count(name string, v *int, lo, hi int) {
	if n, ok := f.Integer(name, int64(lo), int64(hi)); ok {
		*v = int(n)
	}
}

// Ratio reads a share such as 2% or 0.02, from lo to hi.
func (f *Form) Ratio(name string, v *float64, lo, hi float64) {
	s, ok := f.Scalar(name, "a share such as 2% or 0.02")
	if !ok {
		return
	}
	x, err := ParseRatio(s)
	switch {
	case err != nil:
		f.Wrong(name, "%q is not a share such as 2%% or 0.02", Clip(s))
	case x < lo || x > hi:
		f.Wrong(name, "%s is not from %s to %s", s, percent(lo), percent(hi))
	default:
		*v = x
	}
}

// Duration reads a time from lo to hi.
func (f *Form) Duration(name string, v *time.Duration, lo, hi time.Duration) {
	if s, ok := f.Scalar(name, "a time such as 20ms"); ok {
		f.CheckTime(name, s, v, lo, hi)
	}
}

// CheckTime parses s, the value of a field, as a time from lo to hi.
func (f *Form) CheckTime(name, s string, v *time.Duration, lo, hi time.Duration) {
	d, err := ParseTime(s)
	switch {
	case err != nil:
		f.Wrong(name, "%q is not a time; write a number and a unit, such as 44us, 20ms or 1.5s", Clip(s))
	case d < lo || d > hi:
		f.Wrong(name, "%s is not from %s to %s", s, format.ExactDuration(lo), format.ExactDuration(hi))
	default:
		*v = d
	}
}

// Interval reads a list of two times from lo to hi, the smaller one first.
func (f *Form) Interval(name string, from, to *time.Duration, lo, hi time.Duration) {
	n := f.get(name)
	switch {
	case n == nil:
		return
	case n.Kind != yaml.SequenceNode || len(n.Content) != 2:
		f.Wrong(name, "%s, where the two ends are wanted, such as [20us, 60us]", describe(n))
		return
	}
	before := f.Mistakes()
	for i, v := range []*time.Duration{from, to} {
		end := f.doc.follow(n.Content[i], f.path+name)
		if end.Kind != yaml.ScalarNode {
			f.Wrong(name, "%s, where a time is wanted, such as 20us", describe(end))
			return
		}
		f.CheckTime(name, end.Value, v, lo, hi)
	}
	if *to < *from && f.Mistakes() == before {
		f.Wrong(name, "the second end, %s, is less than the first, %s", format.ExactDuration(*to), format.ExactDuration(*from))
	}
}

// List calls read for every item of a field that holds a list of mappings. The list
// must not be empty unless item, which names an item, is empty.
func (f *Form) List(name, item string, most int, read func(*Form)) {
	n := f.get(name)
	switch {
	case n == nil:
	case n.Kind != yaml.SequenceNode && item != "":
		f.Wrong(name, "%s, where a list with at least one %s is wanted", describe(n), item)
	case n.Kind != yaml.SequenceNode:
		f.Wrong(name, "%s, where a list is wanted", describe(n))
	case len(n.Content) == 0 && item != "":
		f.Wrong(name, "the list is empty; want at least one %s", item)
	case len(n.Content) > most:
		f.Wrong(name, "%d items; at most %d are allowed", len(n.Content), most)
	default:
		for i, at := range n.Content {
			if !f.doc.full() {
				read(f.doc.form(at, fmt.Sprintf("%s%s[%d]", f.path, name, i)))
			}
		}
	}
}
