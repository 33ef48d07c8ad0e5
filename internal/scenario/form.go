package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"go.yaml.in/yaml/v3"
)

// mostNodes bounds how many values of a file are looked at, each as often as
// aliases name it.
const mostNodes = 1_000_000

// reader goes through a file and gathers what is wrong with it.
type reader struct {
	file  string
	open  func(path string) ([]byte, error) // of trace files
	errs  Errors
	nodes int
}

// full reports whether there is no point in reading on.
func (r *reader) full() bool { return len(r.errs) >= mostErrors || r.nodes > mostNodes }

func (r *reader) wrong(n *yaml.Node, field, format string, args ...any) {
	if r.full() {
		return
	}
	line := 0
	if n != nil {
		line = n.Line
	}
	r.errs = append(r.errs, Error{r.file, line, field, fmt.Sprintf(format, args...)})
}

// node follows aliases. Nothing below is expanded, so a file cannot blow up.
func (r *reader) node(n *yaml.Node, field string) *yaml.Node {
	if r.nodes == mostNodes {
		r.wrong(n, field, "the file has more than %d values, counting one as often as an alias names it", mostNodes)
	}
	r.nodes++
	for i := 0; n.Kind == yaml.AliasNode && i < 100; i++ {
		n = n.Alias
	}
	return n
}

// kind is what n is called in errors.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a set of fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(clip(n.Value))
}

// clip keeps a value that is quoted in an error to a readable length.
func clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}

// form is a mapping that is read field by field. It notes what it was asked
// for, so that what is left over can be refused with a list of what there is.
type form struct {
	r      *reader
	at     *yaml.Node
	path   string // of the mapping, with a dot after it; empty at the top
	keys   []*yaml.Node
	values map[string]*yaml.Node
	asked  []string
	broken bool // not a mapping: that has been told, what is missing is not
}

func (r *reader) form(n *yaml.Node, path string) *form {
	n = r.node(n, path)
	f := &form{r: r, at: n, values: map[string]*yaml.Node{}}
	if path != "" {
		f.path = path + "."
	}
	if n.Kind != yaml.MappingNode {
		r.wrong(n, path, "%s, where a set of fields is wanted", kind(n))
		f.broken = true
		return f
	}
	for i := 0; i+1 < len(n.Content) && !r.full(); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.wrong(key, path, "%s, where the name of a field is wanted", kind(r.node(key, path)))
			f.broken = true
			continue
		}
		if f.values[key.Value] != nil {
			r.wrong(key, f.path+clip(key.Value), "given twice")
			continue
		}
		f.keys = append(f.keys, key)
		f.values[key.Value] = n.Content[i+1]
	}
	return f
}

// done refuses what nobody asked for. what says of which thing these are fields.
func (f *form) done(what string) {
	for _, key := range f.keys {
		if f.r.full() {
			return
		}
		known := false
		for _, a := range f.asked {
			known = known || a == key.Value
		}
		if !known {
			f.r.wrong(key, f.path+clip(key.Value), "%s has no such field; %s", what, oneOf(key.Value, f.asked))
		}
	}
}

func (f *form) wrong(name, format string, args ...any) {
	n := f.at
	if v := f.values[name]; v != nil {
		n = v
	}
	f.r.wrong(n, f.path+name, format, args...)
}

// get returns the value of a field, or nil if it is not there.
func (f *form) get(name string) *yaml.Node {
	f.asked = append(f.asked, name)
	n := f.values[name]
	if n == nil || f.r.full() {
		return nil
	}
	return f.r.node(n, f.path+name)
}

func (f *form) has(name string) bool { return f.values[name] != nil }

// need complains if a field is not there.
func (f *form) need(name, example string) {
	if !f.broken && !f.has(name) {
		where := strings.TrimSuffix(f.path, ".")
		f.r.wrong(f.at, where, "%s is missing; for example %s: %s", name, name, example)
	}
}

// scalar returns the text of a field with a single value.
func (f *form) scalar(name, wanted string) (string, bool) {
	n := f.get(name)
	if n == nil {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		f.wrong(name, "%s, where %s is wanted", kind(n), wanted)
		return "", false
	}
	return n.Value, true
}

// text reads a field of words.
func (f *form) text(name string, v *string) {
	if s, ok := f.scalar(name, "a text"); ok {
		if len(s) > 4096 {
			f.wrong(name, "longer than 4096 bytes")
			return
		}
		*v = strings.TrimSpace(s)
	}
}

// ident reads a name that must look well in a table, a path and a web page.
func (f *form) ident(name string, v *string) {
	s, ok := f.scalar(name, "a name")
	if !ok {
		return
	}
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.+", c)
	}
	if s == "" || len(s) > 40 || strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		f.wrong(name, "%q is not a name of up to 40 letters, digits, and - _ . +", clip(s))
		return
	}
	*v = s
}

// word reads one of a few words, and returns its index.
func (f *form) word(name, what string, allowed []string) (int, bool) {
	s, ok := f.scalar(name, what)
	if !ok {
		return 0, false
	}
	for i, a := range allowed {
		if a == s {
			return i, true
		}
	}
	f.wrong(name, "there is no %s %q; %s", what, clip(s), oneOf(s, allowed))
	return 0, false
}

func (f *form) boolean(name string, v *bool) {
	s, ok := f.scalar(name, "true or false")
	switch {
	case !ok:
	case s == "true" || s == "false":
		*v = s == "true"
	default:
		f.wrong(name, "%q is neither true nor false", clip(s))
	}
}

// integer reads a whole number from lo to hi.
func (f *form) integer(name string, lo, hi int64) (int64, bool) {
	s, ok := f.scalar(name, "a whole number")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil || n < lo || n > hi {
		f.wrong(name, "%q is not a whole number from %d to %d", clip(s), lo, hi)
		return 0, false
	}
	return n, true
}

func (f *form) count(name string, v *int, lo, hi int) {
	if n, ok := f.integer(name, int64(lo), int64(hi)); ok {
		*v = int(n)
	}
}

// ratio reads a part such as 2% or 0.02, from lo to hi.
func (f *form) ratio(name string, v *float64, lo, hi float64) {
	s, ok := f.scalar(name, "a part such as 2% or 0.02")
	if !ok {
		return
	}
	x, err := parseRatio(s)
	switch {
	case err != nil:
		f.wrong(name, "%q is not a part such as 2%% or 0.02", clip(s))
	case x < lo || x > hi:
		f.wrong(name, "%s is not from %s to %s", s, percent(lo), percent(hi))
	default:
		*v = x
	}
}

// duration reads a time from lo to hi.
func (f *form) duration(name string, v *time.Duration, lo, hi time.Duration) {
	if s, ok := f.scalar(name, "a time such as 20ms"); ok {
		f.checkTime(name, s, v, lo, hi)
	}
}

func (f *form) checkTime(name, s string, v *time.Duration, lo, hi time.Duration) {
	d, err := parseTime(s)
	switch {
	case err != nil:
		f.wrong(name, "%q is not a time; write a number and a unit, such as 44us, 20ms or 1.5s", clip(s))
	case d < lo || d > hi:
		f.wrong(name, "%s is not from %s to %s", s, short(lo), short(hi))
	default:
		*v = d
	}
}

// list calls read for every item of a field that is a list.
func (f *form) list(name string, most int, read func(n *yaml.Node, path string)) {
	n := f.get(name)
	switch {
	case n == nil:
	case n.Kind != yaml.SequenceNode:
		f.wrong(name, "%s, where a list is wanted", kind(n))
	default:
		f.items(n, name, most, read)
	}
}

func (f *form) items(n *yaml.Node, name string, most int, read func(n *yaml.Node, path string)) {
	if len(n.Content) > most {
		f.wrong(name, "%d items; at most %d are allowed", len(n.Content), most)
		return
	}
	for i, item := range n.Content {
		if f.r.full() {
			return
		}
		read(item, fmt.Sprintf("%s%s[%d]", f.path, name, i))
	}
}

// dist reads a time, or a distribution of times, up to hi.
func (f *form) dist(name string, v *sim.Dist, lo, hi time.Duration) {
	n := f.get(name)
	switch {
	case n == nil:
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		d := sim.Dist{}
		f.checkTime(name, n.Value, &d.Mean, lo, hi)
		*v = d
	case n.Kind == yaml.MappingNode:
		f.r.dist(f.r.form(n, f.path+name), v, lo, hi)
	default:
		f.wrong(name, "%s, where a time is wanted, such as 20ms or {uniform: [20us, 60us]}", kind(n))
	}
}
