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

// maxNodes bounds how many values of a file are read. A value counts as often as
// aliases refer to it.
const maxNodes = 1_000_000

// Reader reads a file and collects its mistakes.
type Reader struct {
	file  string
	errs  Errors
	nodes int
}

// Full reports whether reading on has no use: there are too many mistakes or values.
func (r *Reader) Full() bool { return len(r.errs) >= maxErrors || r.nodes > maxNodes }

// Wrong records a mistake at n.
func (r *Reader) Wrong(n *yaml.Node, field, format string, args ...any) {
	if r.Full() {
		return
	}
	line := 0
	if n != nil {
		line = n.Line
	}
	r.errs = append(r.errs, Error{r.file, line, field, fmt.Sprintf(format, args...)})
}

// Node follows aliases from n. It does not expand what the alias refers to, so a
// small file stays small.
func (r *Reader) Node(n *yaml.Node, field string) *yaml.Node {
	if r.nodes == maxNodes {
		r.Wrong(n, field, "the file has more than %d values, with each counted as often as an alias refers to it", maxNodes)
	}
	r.nodes++
	for i := 0; n.Kind == yaml.AliasNode && i < 100; i++ {
		n = n.Alias
	}
	return n
}

// Kind describes n in an error.
func Kind(n *yaml.Node) string {
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
	r      *Reader
	at     *yaml.Node
	path   string // of the mapping, followed by a dot; empty for the top of the file
	keys   []*yaml.Node
	values map[string]*yaml.Node
	asked  []string
	former map[string]string // fields that were renamed, and what to write instead
	broken bool              // it is not a mapping: missing fields are not reported
}

// Form returns the fields of n, which must be a mapping. path is its name in errors,
// empty for the top of the file.
func (r *Reader) Form(n *yaml.Node, path string) *Form {
	n = r.Node(n, path)
	f := &Form{r: r, at: n, values: map[string]*yaml.Node{}}
	if path != "" {
		f.path = path + "."
	}
	if n.Kind != yaml.MappingNode {
		r.Wrong(n, path, "%s, where a set of fields is wanted", Kind(n))
		f.broken = true
		return f
	}
	for i := 0; i+1 < len(n.Content) && !r.Full(); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.Wrong(key, path, "%s, where the name of a field is wanted", Kind(r.Node(key, path)))
			f.broken = true
			continue
		}
		if f.values[key.Value] != nil {
			r.Wrong(key, f.path+Clip(key.Value), "given twice")
			continue
		}
		f.keys = append(f.keys, key)
		f.values[key.Value] = n.Content[i+1]
	}
	return f
}

// At returns the mapping.
func (f *Form) At() *yaml.Node { return f.at }

// Where returns the mapping's name in errors.
func (f *Form) Where() string { return strings.TrimSuffix(f.path, ".") }

// Path returns a field's name in errors.
func (f *Form) Path(name string) string { return f.path + name }

// Value returns a field as it is in the file, or nil.
func (f *Form) Value(name string) *yaml.Node { return f.values[name] }

// Ask allows a field without reading it.
func (f *Form) Ask(name string) { f.asked = append(f.asked, name) }

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
	for _, key := range f.keys {
		if f.r.Full() {
			return
		}
		switch instead := f.former[key.Value]; {
		case slices.Contains(f.asked, key.Value):
		case instead != "":
			f.r.Wrong(key, f.path+Clip(key.Value), "%s has no field %s any more: %s", what, key.Value, instead)
		default:
			f.r.Wrong(key, f.path+Clip(key.Value), "%s has no such field; %s", what, OneOf(key.Value, f.asked))
		}
	}
}

// Wrong records a mistake in a field, or in the mapping if it has no such field.
func (f *Form) Wrong(name, format string, args ...any) {
	n := f.at
	if v := f.values[name]; v != nil {
		n = v
	}
	f.r.Wrong(n, f.path+name, format, args...)
}

// Get returns the value of a field, or nil if there is no such field.
func (f *Form) Get(name string) *yaml.Node {
	f.asked = append(f.asked, name)
	n := f.values[name]
	if n == nil || f.r.Full() {
		return nil
	}
	return f.r.Node(n, f.path+name)
}

// Has reports whether the mapping has a field.
func (f *Form) Has(name string) bool { return f.values[name] != nil }

// Need records a mistake if the mapping does not have a field.
func (f *Form) Need(name, example string) {
	if !f.broken && !f.Has(name) {
		f.r.Wrong(f.at, f.Where(), "%s is missing; for example %s: %s", name, name, example)
	}
}

// scalar returns a field that holds a single value.
func (f *Form) scalar(name, wanted string) *yaml.Node {
	n := f.Get(name)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.ScalarNode || typeOf(n) == null || typeOf(n) == other {
		f.Wrong(name, "%s, where %s is wanted", Kind(n), wanted)
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
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.+", c)
	}
	if s == "" || len(s) > 40 || strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		f.Wrong(name, "%q is not a name of up to 40 letters, digits, and - _ . +", Clip(s))
		return
	}
	*v = s
}

// IdentOrIndex reads a name, or a number from 0.
func (f *Form) IdentOrIndex(name string, v *string) {
	n := f.values[name]
	if n != nil && typeOf(f.r.Node(n, f.path+name)) == number {
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
	n := f.Get(name)
	if n == nil {
		return "", nil, false
	}
	if n.Kind != yaml.MappingNode {
		i, ok := f.Word(name, what, allowed)
		return allowed[i], nil, ok
	}
	m := f.r.Form(n, f.Path(name))
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

// List calls read for every item of a field that holds a list.
func (f *Form) List(name string, most int, read func(n *yaml.Node, path string)) {
	n := f.Get(name)
	switch {
	case n == nil:
	case n.Kind != yaml.SequenceNode:
		f.Wrong(name, "%s, where a list is wanted", Kind(n))
	default:
		f.Items(n, name, most, read)
	}
}

// Items calls read for every item of n, the list that a field holds.
func (f *Form) Items(n *yaml.Node, name string, most int, read func(n *yaml.Node, path string)) {
	if len(n.Content) > most {
		f.Wrong(name, "%d items; at most %d are allowed", len(n.Content), most)
		return
	}
	for i, item := range n.Content {
		if f.r.Full() {
			return
		}
		read(item, fmt.Sprintf("%s%s[%d]", f.path, name, i))
	}
}
