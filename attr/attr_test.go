package attr

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestRowsAreComplete checks that every row has what the other packages derive from it.
func TestRowsAreComplete(t *testing.T) {
	names, keys, kinds := map[string]bool{}, map[string]bool{}, map[uint32]bool{}
	for _, id := range IDs(0) {
		r := id.Row()
		if r.Name == "" || r.Key == "" || r.Help == "" || r.Ways == 0 {
			t.Errorf("row %d lacks a name, key, help or way: %+v", id, r)
		}
		if names[r.Name] || keys[r.Key] || r.HintKind != 0 && kinds[r.HintKind] {
			t.Errorf("%s: another row has its name, key or hint kind", r.Name)
		}
		names[r.Name], keys[r.Key], kinds[r.HintKind] = true, true, true
		if (r.Ways&ByPage != 0) != (r.HintKind != 0) {
			t.Errorf("%s: hint kind %d, but its ways are %v", r.Name, r.HintKind, r.Ways)
		}
		if r.Min > r.Default || r.Default > r.Max || r.Min > r.Max {
			t.Errorf("%s: default %d is not from %d to %d", r.Name, r.Default, r.Min, r.Max)
		}
		suffix := map[Type]string{TypeDuration: "_ns", TypePercent: "_percent"}[r.Type]
		if want := r.YAML() + suffix; r.Key != want {
			t.Errorf("%s: key %q, want %q", r.Name, r.Key, want)
		}
		if n := int64(len(r.Words)); (r.Type == TypeWord) != (n > 0) || n > 0 && (r.Min != 0 || r.Max != n-1) {
			t.Errorf("%s: %d words for the values from %d to %d", r.Name, n, r.Min, r.Max)
		}
		if r.Uses != "" && r.field == nil {
			t.Errorf("%s: policies use it, but it is not part of sched.Attr", r.Name)
		}
	}
}

// TestEveryFieldOfSchedAttrHasARow sets each attribute and looks for it in sched.Attr.
func TestEveryFieldOfSchedAttrHasARow(t *testing.T) {
	covered := map[string]bool{}
	for _, id := range IDs(0) {
		if id.Row().field == nil {
			continue
		}
		r := Resolve(&Layers{FromSet: id.Of(id.Row().Max)})
		a := r.Sched()
		if id != Weight {
			a.Weight = 0 // 1 by default
		}
		if back := FromSched(a); back != id.Of(id.Row().Max) {
			t.Errorf("%v: got %v back from %+v", id, back, a)
		}
		v := reflect.ValueOf(a)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				covered[v.Type().Field(i).Name] = true
			}
		}
	}
	if n := reflect.TypeFor[sched.Attr]().NumField(); len(covered) != n {
		t.Errorf("rows cover %d of the %d fields of sched.Attr: %v", len(covered), n, covered)
	}
}

// TestHintKindsAreThoseOfTheABI compares the table with enum gw_hint_kind.
func TestHintKindsAreThoseOfTheABI(t *testing.T) {
	abi, err := os.ReadFile("../shim/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	_, enum, _ := strings.Cut(string(abi), "enum gw_hint_kind {")
	enum, _, _ = strings.Cut(enum, "};")
	names := regexp.MustCompile(`(?m)^\s*GW_HINT_(\w+)`).FindAllStringSubmatch(enum, -1)
	if len(names) < 11 {
		t.Fatalf("found %d kinds of hints in shim/abi.h", len(names))
	}
	for i, m := range names {
		id, ok := ByHintKind(uint32(i + 1))
		switch want := strings.ToLower(m[1]); {
		case want == "begin" || want == "end":
			if ok {
				t.Errorf("kind %d, %s, is attribute %v", i+1, want, id)
			}
		case !ok || id.String() != want:
			t.Errorf("kind %d: got attribute %v (%v), want %s", i+1, id, ok, want)
		}
	}
	for _, kind := range []uint32{0, 99} {
		if id, ok := ByHintKind(kind); ok {
			t.Errorf("kind %d is attribute %v", kind, id)
		}
	}
}

// TestClassesAreComplete: every class of package sched is listed, once, with its help.
func TestClassesAreComplete(t *testing.T) {
	seen := map[sched.Class]bool{}
	for _, c := range Classes() {
		if parsed, err := sched.ParseClass(c.Class.String()); err != nil || parsed != c.Class || c.Help == "" || seen[c.Class] {
			t.Errorf("class %v: parsed as %v, %v; help %q", c.Class, parsed, err, c.Help)
		}
		seen[c.Class] = true
	}
	if next := sched.Class(len(seen)); !strings.HasPrefix(next.String(), "unknown") {
		t.Errorf("class %v is not listed", next)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"class=online":            "class=online",
		"weight=10000 slo=1500us": "weight=10000 slo=1.5ms",
		"slo=0 deadline=1h":       "slo=0 deadline=1h",
		"share=25% nice=-20":      "nice=-20 share=25%",
		"share=0.29":              "share=29%",
		"share=1":                 "share=100%",
		"priority=1_000":          "priority=1000",
		"paused=true focus=false": "focus=false paused=true",
		"":                        "",

		"class=urgent":         "class urgent is not one of online, standard, batch, idle",
		"class=":               `class "" is not one of online, standard, batch, idle`,
		"weight=0":             "weight 0 is not a whole number from 1 to 10000",
		"weight=1.5":           "weight 1.5 is not a whole number from 1 to 10000",
		"nice=20":              "nice 20 is not a whole number from -20 to 19",
		"bound=65537":          "bound 65537 is not a whole number from 0 (no bound) to 65536",
		"slo=5":                "slo 5 is not a time from 0 (none) to 1h, such as 20ms",
		"slo=-1ns":             "slo -1ns is not a time from 0 (none) to 1h, such as 20ms",
		"slo=61m":              "slo 61m is not a time from 0 (none) to 1h, such as 20ms",
		"share=101%":           "share 101% is not a whole percentage from 0% (an equal part of what is left) to 100%, such as 25%",
		"share=2.5%":           "share 2.5% is not a whole percentage from 0% (an equal part of what is left) to 100%, such as 25%",
		"share=NaN":            "share NaN is not a whole percentage from 0% (an equal part of what is left) to 100%, such as 25%",
		"share=25":             "share 25 is not a whole percentage from 0% (an equal part of what is left) to 100%, such as 25%",
		"late-entry=on":        "late-entry=on",
		"late-entry=2":         "late-entry 2 is not one of off, auto, on",
		"late-entry=":          `late-entry "" is not one of off, auto, on`,
		"predict=1":            "predict 1 is not true or false",
		"priority=99999999999": "priority 99999999999 is not a whole number from -2147483648 to 2147483647",
		"colour=red":           `"colour=red" is not an attribute and its value, such as class=batch`,
		"class":                `"class" is not an attribute and its value, such as class=batch`,
		"class=\x1b[31m":       "class ?[31m is not one of online, standard, batch, idle",
	} {
		v, err := Parse(text)
		got := v.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		v    Values
		way  Way
		want string
	}{
		{Must("class=online predict=true"), ByRun, ""},
		{Must("predict=true"), BySet, ""},
		{Must("bound=16 bound-batch=16"), BySet, ""},
		{Must("bound=0 bound-batch=16"), BySet, ""},
		{Must("class=batch predict=true"), ByRun, "predict is for class online only, not for batch: choose that class, or leave predict out"},
		{Must("class=batch predict=false"), ByRun, ""},
		{Must("class=batch late-entry=on"), ByRun, "late-entry is for class online only, not for batch: choose that class, or leave late-entry out"},
		{Must("class=batch late-entry=off"), ByRun, ""},
		{LateEntry.Of(3), BySet, "late-entry unknown-3 is not one of off, auto, on"},
		{Must("bound=16 bound-batch=17"), BySet, "bound-batch 17 is more than bound 16"},
		{Must("paused=true"), ByRun, "paused cannot be set by run, only by: set"},
		{Must("expect=1ms"), BySet, "expect cannot be set by set, only by: hint, page"},
		{Weight.Of(0), ByPage, "weight 0 is not a whole number from 1 to 10000"},
		{SLO.Of(math.MaxInt64), ByPage, "slo 2562047h47m16.854775807s is not a time from 0 (none) to 1h, such as 20ms"},
		{Class.Of(4), ByPage, "class unknown-4 is not one of online, standard, batch, idle"},
		{Class.Of(-1), ByPage, "class unknown-255 is not one of online, standard, batch, idle"},
	} {
		got := ""
		if err := c.v.Check(c.way); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v by %v: got %q, want %q", c.v, c.way, got, c.want)
		}
	}
}

func TestJSON(t *testing.T) {
	var all Values
	for _, id := range IDs(0) {
		all.Set(id, id.Row().Max)
	}
	for _, v := range []Values{{}, all, Must("class=batch slo=10ms share=25% paused=false"), Must("class=default weight=2 paused=default")} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back Values
		if err := json.Unmarshal(data, &back); err != nil || back != v {
			t.Errorf("%s: got %v, want %v: %v", data, back, v, err)
		}
	}
	got, _ := json.Marshal(Must("class=batch slo=10ms share=25% late-entry=on paused=true"))
	if want := `{"class":"batch","share_percent":25,"slo_ns":10000000,"late_entry":"on","paused":true}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for text, want := range map[string]string{
		`{"class":"urgent"}`: "class urgent is not one of online, standard, batch, idle",
		`{"class":1}`:        "class 1 is not one of online, standard, batch, idle",
		`{"weight":"2"}`:     `weight "2" is not a whole number from 1 to 10000; weight is a whole number`,
		`{"weight":1e3}`:     "weight 1e3 is not a whole number from 1 to 10000; weight is a whole number",
		`{"slo_ns":"10ms"}`:  `slo "10ms" is not a time from 0 (none) to 1h, such as 20ms; slo_ns is a whole number in nanoseconds`,
		`{"slo_ns":-1}`:      "slo -1ns is not a time from 0 (none) to 1h, such as 20ms",
		`{"paused":"yes"}`:   `paused "yes" is not true or false`,
		`{"late_entry":2}`:   "late-entry 2 is not one of off, auto, on",
		`{"colour":"red"}`:   `there is no attribute "colour"`,
		`[]`:                 "json: cannot unmarshal array into Go value of type map[string]json.RawMessage",
	} {
		var v Values
		got := ""
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			got = err.Error()
		}
		if got != want || want == "" && !v.Empty() {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestWith(t *testing.T) {
	got := Must("class=batch weight=2").With(Must("weight=3 slo=1ms"))
	if want := Must("class=batch weight=3 slo=1ms"); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	got.Remove(SLO)
	if want := Must("class=batch weight=3"); got != want {
		t.Errorf("after Remove: got %v, want %v", got, want)
	}
}

// TestLaterSourcesOverride gives every attribute every pair of sources.
func TestLaterSourcesOverride(t *testing.T) {
	for _, id := range IDs(0) {
		r := id.Row()
		low, high := r.Min, r.Max
		if got := Resolve(&Layers{}); got.Int(id) != r.Default || got.Source(id) != FromDefault {
			t.Errorf("%v: got %d from %v by default, want %d", id, got.Int(id), got.Source(id), r.Default)
		}
		for first := FromProcess; first < sources; first++ {
			for second := first + 1; second < sources; second++ {
				var l Layers
				l[first], l[second] = id.Of(low), id.Of(high)
				got := Resolve(&l)
				if got.Int(id) != high || got.Source(id) != second {
					t.Errorf("%v: got %d from %v, want %d from %v over %v", id, got.Int(id), got.Source(id), high, second, first)
				}
			}
		}
	}
}

func TestResolved(t *testing.T) {
	r := Resolve(&Layers{
		FromProcess: Must("nice=5"), FromRule: Must("class=batch weight=3"), FromHint: Must("slo=4ms class=online"), FromSet: Must("paused=true"),
	})
	if r.Class() != sched.Online || r.Source(Class) != FromHint || r.Int(Weight) != 3 || r.Duration(SLO) != 4*time.Millisecond || !r.Bool(Paused) || r.Int(Nice) != 5 {
		t.Errorf("got %v", r.Given())
	}
	want := sched.Attr{Class: sched.Online, Weight: 3, SLO: 4 * time.Millisecond, Paused: true, Nice: 5}
	if got := r.Sched(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	public := r.Public()
	if got, want := public.Given(), Must("class=online paused=true"); got != want || public.Source(Class) != FromHint {
		t.Errorf("public: got %v from %v, want %v", got, public.Source(Class), want)
	}
	for i, name := range Sources() {
		if s, ok := ParseSource(name); !ok || s != Source(i) || s.String() != name {
			t.Errorf("source %q: got %v, %v", name, s, ok)
		}
	}
	if s, ok := ParseSource("rumour"); ok || s != FromDefault {
		t.Errorf("unknown source: got %v, %v", s, ok)
	}
}

// form is a mapping. Its readers do not check limits.
type form map[string]string

func (f form) Has(name string) bool                 { return f[name] != "" }
func (f form) Scalar(name, _ string) (string, bool) { return f[name], f.Has(name) }
func (f form) Wrong(name, _ string, _ ...any)       { f[name] = "wrong" }

func (f form) Word(name, _ string, allowed []string) (int, bool) {
	i := slices.Index(allowed, f[name])
	return max(i, 0), i >= 0
}

func (f form) Integer(name string, _, _ int64) (int64, bool) {
	n, err := strconv.ParseInt(f[name], 10, 64)
	return n, err == nil
}

func (f form) Duration(name string, v *time.Duration, _, _ time.Duration) {
	*v, _ = time.ParseDuration(f[name])
}

func (f form) Boolean(name string, v *bool) { *v = f[name] == "true" }

// TestReadYAML reads every attribute in every way that its row claims, and no other.
func TestReadYAML(t *testing.T) {
	for _, way := range []Way{ByRule, ByScenario} {
		for _, id := range IDs(0) {
			r := id.Row()
			var want Values
			if r.Ways&way != 0 {
				want = id.Of(r.Max)
			}
			if got := ReadYAML(form{r.YAML(): r.Format(r.Max)}, way); got != want {
				t.Errorf("%v by %v: got %v, want %v", id, way, got, want)
			}
		}
	}
	f := form{"share": "much"}
	if v := ReadYAML(f, ByRule); !v.Empty() || f["share"] != "wrong" {
		t.Errorf("an invalid value was read as %v", v)
	}
}

func FuzzParse(f *testing.F) {
	for id := range count {
		f.Add(uint8(id), table[id].Format(table[id].Max))
	}
	f.Fuzz(func(t *testing.T, n uint8, text string) {
		r := ID(n % uint8(count)).Row()
		v, err := r.Parse(text)
		if err != nil {
			return
		}
		if again, err := r.Parse(r.Format(v)); err != nil || again != v {
			t.Errorf("%s %s: %d is written as %s and read as %s: %v", r.Name, strconv.Quote(text), v, r.Format(v), strconv.FormatInt(again, 10), err)
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	l := Layers{FromProcess: Must("nice=5"), FromRule: Must("class=batch weight=3"), FromHint: Must("slo=4ms")}
	for b.Loop() {
		r := Resolve(&l)
		r.Sched()
	}
}

// TestClear: every attribute can be cleared, in text and in JSON, by set and hint alone. What
// the source gave is then gone, and others stay.
func TestClear(t *testing.T) {
	for _, id := range IDs(0) {
		given := Must("class=batch weight=3 slo=10ms")
		given.Set(id, id.Row().Max)
		change, err := Parse(id.String() + "=default")
		if err != nil || !change.Clears(id) || change.Has(id) || change.Empty() || change.String() != id.String()+"=default" {
			t.Errorf("%v: got %v, %v", id, change, err)
		}
		var back Values
		if data, _ := json.Marshal(change); json.Unmarshal(data, &back) != nil || back != change {
			t.Errorf("%v: got %v from %s", id, back, data)
		}
		want := given
		want.Remove(id)
		if got := given.With(change); got != want {
			t.Errorf("%v: got %v, want %v", id, got, want)
		}
		for _, way := range []Way{ByRule, ByRun, BySet, ByHint, ByScenario} {
			allowed := (way == BySet || way == ByHint) && id.Row().Ways&way != 0
			if err := change.Check(way); (err == nil) != allowed {
				t.Errorf("%v by %v: got %v, want allowed %v", id, way, err, allowed)
			}
		}
	}
	if v := Must("class=default"); v.With(Must("class=batch")).String() != "class=batch" {
		t.Error("a value in place of a cleared attribute is still cleared")
	}
}
