package yamlfile

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"go.yaml.in/yaml/v3"
)

// mostNodes bounds how many values of a file are looked at, each as often as
// aliases name it.
const mostNodes = 1_000_000

// Reader goes through a file and gathers what is wrong with it.
type Reader struct {
	file  string
	errs  Errors
	nodes int
}

// Full reports whether there is no point in reading on.
func (r *Reader) Full() bool { return len(r.errs) >= mostErrors || r.nodes > mostNodes }

// Wrong notes a mistake at n.
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

// Node follows aliases. Nothing below is expanded, so a file cannot blow up.
func (r *Reader) Node(n *yaml.Node, field string) *yaml.Node {
	if r.nodes == mostNodes {
		r.Wrong(n, field, "the file has more than %d values, counting one as often as an alias names it", mostNodes)
	}
	r.nodes++
	for i := 0; n.Kind == yaml.AliasNode && i < 100; i++ {
		n = n.Alias
	}
	return n
}

// Kind is what n is called in errors.
func Kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a set of fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(Clip(n.Value))
}

// Clip keeps a value that is quoted in an error to a readable length.
func Clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}

// Form is a mapping that is read field by field. It notes what it was asked
// for, so that what is left over can be refused with a list of what there is.
type Form struct {
	r      *Reader
	at     *yaml.Node
	path   string // of the mapping, with a dot after it; empty at the top
	keys   []*yaml.Node
	values map[string]*yaml.Node
	asked  []string
	broken bool // not a mapping: that has been told, what is missing is not
}

// Form returns the fields of n, which ought to be a mapping. path is its name
// in errors; the top of a file has none.
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

// Keys are the fields that are there, in the order of the file.
func (f *Form) Keys() []*yaml.Node { return f.keys }

// At is the mapping itself.
func (f *Form) At() *yaml.Node { return f.at }

// Where is the name of the mapping in errors, and Path that of one of its fields.
func (f *Form) Where() string           { return strings.TrimSuffix(f.path, ".") }
func (f *Form) Path(name string) string { return f.path + name }

// Value returns a field as it stands in the file, or nil.
func (f *Form) Value(name string) *yaml.Node { return f.values[name] }

// Ask notes that there is such a field, without reading it.
func (f *Form) Ask(name string) { f.asked = append(f.asked, name) }

// Done refuses what nobody asked for. what says of which thing these are fields.
func (f *Form) Done(what string) {
	for _, key := range f.keys {
		if f.r.Full() {
			return
		}
		known := false
		for _, a := range f.asked {
			known = known || a == key.Value
		}
		if !known {
			f.r.Wrong(key, f.path+Clip(key.Value), "%s has no such field; %s", what, OneOf(key.Value, f.asked))
		}
	}
}

// Wrong notes a mistake in a field, or in the mapping if the field is not there.
func (f *Form) Wrong(name, format string, args ...any) {
	n := f.at
	if v := f.values[name]; v != nil {
		n = v
	}
	f.r.Wrong(n, f.path+name, format, args...)
}

// Get returns the value of a field, or nil if it is not there.
func (f *Form) Get(name string) *yaml.Node {
	f.asked = append(f.asked, name)
	n := f.values[name]
	if n == nil || f.r.Full() {
		return nil
	}
	return f.r.Node(n, f.path+name)
}

// Has reports whether a field is there.
func (f *Form) Has(name string) bool { return f.values[name] != nil }

// Need complains if a field is not there.
func (f *Form) Need(name, example string) {
	if !f.broken && !f.Has(name) {
		f.r.Wrong(f.at, f.Where(), "%s is missing; for example %s: %s", name, name, example)
	}
}

// Scalar returns the text of a field with a single value.
func (f *Form) Scalar(name, wanted string) (string, bool) {
	n := f.Get(name)
	if n == nil {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		f.Wrong(name, "%s, where %s is wanted", Kind(n), wanted)
		return "", false
	}
	return n.Value, true
}

// Text reads a field of words.
func (f *Form) Text(name string, v *string) {
	if s, ok := f.Scalar(name, "a text"); ok {
		if len(s) > 4096 {
			f.Wrong(name, "longer than 4096 bytes")
			return
		}
		*v = strings.TrimSpace(s)
	}
}

// Ident reads a name that must look well in a table, a path and a web page.
func (f *Form) Ident(name string, v *string) {
	s, ok := f.Scalar(name, "a name")
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

// Word reads one of a few words, and returns its index.
func (f *Form) Word(name, what string, allowed []string) (int, bool) {
	s, ok := f.Scalar(name, what)
	if !ok {
		return 0, false
	}
	for i, a := range allowed {
		if a == s {
			return i, true
		}
	}
	f.Wrong(name, "there is no %s %q; %s", what, Clip(s), OneOf(s, allowed))
	return 0, false
}

// Boolean reads true or false.
func (f *Form) Boolean(name string, v *bool) {
	s, ok := f.Scalar(name, "true or false")
	switch {
	case !ok:
	case s == "true" || s == "false":
		*v = s == "true"
	default:
		f.Wrong(name, "%q is neither true nor false", Clip(s))
	}
}

// Integer reads a whole number from lo to hi.
func (f *Form) Integer(name string, lo, hi int64) (int64, bool) {
	s, ok := f.Scalar(name, "a whole number")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil || n < lo || n > hi {
		f.Wrong(name, "%q is not a whole number from %d to %d", Clip(s), lo, hi)
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

// Ratio reads a part such as 2% or 0.02, from lo to hi.
func (f *Form) Ratio(name string, v *float64, lo, hi float64) {
	s, ok := f.Scalar(name, "a part such as 2% or 0.02")
	if !ok {
		return
	}
	x, err := ParseRatio(s)
	switch {
	case err != nil:
		f.Wrong(name, "%q is not a part such as 2%% or 0.02", Clip(s))
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

// CheckTime reads s, which stands in a field, as a time from lo to hi.
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

// List calls read for every item of a field that is a list.
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

// Items calls read for every item of n, which is what a field holds.
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
