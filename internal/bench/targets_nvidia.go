package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/stats"
)

// beyond is how many requests must be slower than a quantile for it to decide: with fewer, one or two
// bursts of a noisy host are the quantile.
const beyond = 5

// WriteTargets writes a table, in Markdown, of the targets on an NVIDIA H200: those of the benchmark's
// cases, and of tests of internal/e2e. The figures are computed from the JSON files in a folder. It
// reports whether all targets were reached.
func WriteTargets(w io.Writer, folder string) (met bool, err error) {
	r, err := readResults(folder)
	if err != nil {
		return false, err
	}
	t := targetTable{head: []string{"target", "measured", "P50 / P90 / P99 / max, requests", "file", "met?"}}
	var gpus int
	t.machines, gpus = r.machines()
	if gpus > 1 {
		t.notes = fmt.Sprintf("The files are of %d GPUs.\n\n", gpus)
	}
	t.notes += fmt.Sprintf("Ratios are to alone and native of the same rounds, with those of the lowest and the highest round, or of the last such phase before. "+
		"A quantile decides only if at least %d requests were slower: a P99 needs %d.\n\n", beyond, enough(0.99))
	for _, c := range Cases() {
		t.rows = append(t.rows, r.rowsOf(c)...)
	}
	t.rows = append(t.rows, r.testRows()...)
	return t.write(w)
}

// enough returns how many requests a quantile needs.
func enough(q float64) int { return int(math.Ceil(beyond/(1-q) - 1e-6)) }

// resultFiles are the JSON files of a folder, in order of time.
type resultFiles struct {
	bench []benchFile
	tests []testFile
}

type benchFile struct {
	name string
	Result
}

// testFile is the part of a file of internal/e2e that targets need.
type testFile struct {
	name    string
	Test    string    `json:"test"`
	Started time.Time `json:"started"`
	Machine Machine   `json:"machine"`
	Rows    []struct {
		Name    string             `json:"name"`
		Latency *stats.Summary     `json:"latency"`
		Values  map[string]float64 `json:"values"`
	} `json:"rows"`
	Checks []struct {
		Name string  `json:"name"`
		Got  float64 `json:"got"`
	} `json:"checks"`
	Passed bool `json:"passed"`
}

func readResults(folder string) (*resultFiles, error) {
	r := &resultFiles{}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var kind struct {
			Test  string
			Cases []json.RawMessage
		}
		err = json.Unmarshal(text, &kind)
		name := filepath.Base(path)
		switch {
		case err == nil && kind.Test != "":
			f := testFile{name: name}
			err = json.Unmarshal(text, &f)
			r.tests = append(r.tests, f)
		case err == nil && kind.Cases != nil:
			f := benchFile{name: name}
			err = json.Unmarshal(text, &f.Result)
			for i := range f.Cases {
				f.Cases[i].compare()
			}
			r.bench = append(r.bench, f)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	slices.SortStableFunc(r.bench, func(a, b benchFile) int { return a.Started.Compare(b.Started) })
	slices.SortStableFunc(r.tests, func(a, b testFile) int { return a.Started.Compare(b.Started) })
	return r, nil
}

// machines returns the machines of the files, each that reads the same once, and the number of GPUs.
func (r *resultFiles) machines() (all []Machine, gpus int) {
	var read []Machine
	for _, f := range r.bench {
		read = append(read, f.Machine)
	}
	for _, f := range r.tests {
		read = append(read, f.Machine)
	}
	seen := map[string]bool{}
	for _, m := range read {
		m.Driver = cleanDriver(m.Driver)
		if !slices.ContainsFunc(all, func(have Machine) bool { return have.facts("") == m.facts("") }) {
			all = append(all, m)
		}
		seen[m.UUID] = true
	}
	if len(all) == 0 {
		return []Machine{{}}, 0
	}
	return all, len(seen)
}

// rowsOf returns a row for each file in which a target of a case was measured, and one for each target
// that none has.
func (r *resultFiles) rowsOf(c Case) (rows []targetRow) {
	reasons := map[Target]targetRow{} // of targets that were not measured
	for _, t := range c.Targets {
		reasons[t] = t.row(c.Name)
	}
	measured := map[Target]bool{}
	for _, f := range r.bench {
		for i := range f.Cases {
			got, shown := &f.Cases[i], ""
			if got.Name != c.Name {
				continue
			}
			for _, t := range c.Targets {
				row := t.row(c.Name)
				row.beside = []string{format.Missing, f.name}
				if !got.fill(&row, t) {
					reason := cmp.Or(got.Skipped, got.Error, strings.Join(got.Notes, "; "), "the file does not have it")
					row.note = format.Text(cell.Replace(reason), 100)
					reasons[t] = row
					continue
				}
				measured[t] = true
				if shown == t.Phase {
					row.beside[0] = "as above"
				}
				shown = t.Phase
				rows = append(rows, row)
			}
		}
	}
	for _, t := range c.Targets {
		if !measured[t] {
			rows = append(rows, reasons[t])
		}
	}
	return rows
}

// row returns the row of a target that was not measured.
func (t Target) row(name string) targetRow {
	what := fmt.Sprintf("%s, %s: %s", name, t.Phase, strings.TrimSuffix(string(t.Figure), inMs))
	row := targetRow{what: what, limits: []float64{t.Most}, orEqual: true, write: t.Figure.text}
	if t.Least > 0 {
		row.limits, row.more = []float64{t.Least}, true
	}
	return row
}

func (f Figure) text(v float64) string {
	switch f {
	case P50, P99:
		return milliseconds(v)
	case LostShare:
		return format.Percent(v)
	}
	return ratioText(v)
}

// ratioText writes a ratio with three digits after the point at most.
func ratioText(v float64) string {
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'g', -1, 64)
}

// quantile returns the quantile that a figure is or compares, or 0.
func (f Figure) quantile() float64 {
	switch f {
	case P50, P50Alone:
		return 0.5
	case P99, P99Alone, P99Native:
		return 0.99
	}
	return 0
}

// fill fills in what was measured. It returns false where that is nothing.
func (c *CaseResult) fill(row *targetRow, target Target) bool {
	i := slices.IndexFunc(c.Phases, func(p Phase) bool { return p.Name == target.Phase })
	if i < 0 {
		return false
	}
	p := &c.Phases[i]
	row.measured = target.Figure.of(p)
	if row.measured == nil {
		return false
	}
	base, shared := c.aloneFor(i), cmp.Or(c.before(i, newPhase(native, p.Situation).Name), c.before(i, native))
	compared := map[Figure]*Phase{P50Alone: base, P99Alone: base, P99Native: shared, BatchNative: shared}[target.Figure]
	if q := target.Figure.quantile(); q > 0 {
		n := p.Latency.Count
		if compared != nil {
			n = min(n, compared.Latency.Count)
		}
		if n < enough(q) {
			row.doubt = fmt.Sprintf("too few requests: %d of %d", n, enough(q))
		}
	}
	if low, high, ok := target.Figure.rounds(p, compared); ok && !c.Mixed {
		row.note = fmt.Sprintf("%s to %s in %d rounds", target.Figure.text(low), target.Figure.text(high), len(p.Rounds))
	}
	var cells []string
	for _, q := range []*Phase{p, base, shared, c.phase(mpsPriority)} {
		if q != nil && (q.Latency != nil || len(q.Batch) > 0 && q != base) {
			cells = append(cells, q.shortly(len(cells) == 0))
		}
	}
	row.beside[0] = strings.Join(cells, "; ")
	return true
}

// shortly describes a phase in a cell of a table. The first in a cell is that of the target.
func (p *Phase) shortly(first bool) string {
	text := p.Name
	if first {
		text = "it"
	}
	if l := p.Latency; l != nil && l.Count > 0 {
		text += fmt.Sprintf(" %s / %s / %s / %s, %d", format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max), l.Count)
	}
	if len(p.Batch) > 0 {
		text += ", batch " + format.Rate(p.BatchRate)
	}
	return text
}

// rounds returns the lowest and highest ratio of a phase to another in single rounds. It has none
// where the phases were not measured in the same rounds.
func (f Figure) rounds(p, to *Phase) (low, high float64, ok bool) {
	if to == nil || len(p.Rounds) < 2 || len(p.Rounds) != len(to.Rounds) {
		return 0, 0, false
	}
	low, high = math.Inf(1), math.Inf(-1)
	of := func(r RoundPart) float64 {
		switch f.quantile() {
		case 0.5:
			return float64(r.P50)
		case 0.99:
			return float64(r.P99)
		}
		return r.Batch
	}
	for i := range p.Rounds {
		ratio := stats.Ratio(of(p.Rounds[i]), of(to.Rounds[i]))
		low, high = min(low, ratio), max(high, ratio)
	}
	return low, high, number(low) != nil && number(high) != nil
}

// killsTest kills the daemon while requests enter late and a pool runs.
const killsTest = "TestKilledWithLateEntryAndPool"

// testRows returns the rows of targets that tests of internal/e2e measure.
func (r *resultFiles) testRows() []targetRow {
	cost := func(what string) func(*testFile) *float64 {
		return checkNamed("late entry: " + what + " p50, shim / driver")
	}
	return []targetRow{
		r.ofTests("all orders of calls with late entry: requests that entered late", 1, true, ratioText, sumOf("late_requests"), "TestShimOrder"),
		r.ofTests("results with late entry equal bit for bit: time compared", (10 * time.Minute).Seconds(), true, seconds, sumOf("compared_s"), "TestLateEntryIsExact", killsTest),
		r.ofTests("daemon killed while requests enter late, beside a pool: kills", 200, true, ratioText, killsOf(func(s *stats.Summary) float64 { return float64(s.Count) }), killsTest),
		r.ofTests("the same: longest time until all make progress", 1, false, seconds, killsOf(func(s *stats.Summary) float64 { return s.Max.Seconds() }), killsTest),
		r.ofTests("launch and wait with late entry and nothing to gain: shim / driver", 1.02, false, ratioText, cost("launch+wait"), "TestShimCost"),
		r.ofTests("burst with late entry and nothing to gain: shim / driver", 1.02, false, ratioText, cost("burst"), "TestShimCost"),
	}
}

// ofTests returns a row whose figure is computed from all files of some tests: their sum if more is
// better, and otherwise the worst. A file of a test that failed does not count, and the target is not
// reached then. The figure is nil where a file does not have it.
func (r *resultFiles) ofTests(what string, limit float64, more bool, write func(float64) string, figure func(*testFile) *float64, tests ...string) targetRow {
	row := targetRow{what: what, limits: []float64{limit}, more: more, orEqual: true, write: write}
	var files, failed []string
	for i := range r.tests {
		f := &r.tests[i]
		if !slices.Contains(tests, f.Test) {
			continue
		}
		files = append(files, f.name)
		got := figure(f)
		switch {
		case !f.Passed && got == nil:
			failed = append(failed, f.name+" failed")
		case !f.Passed:
			failed = append(failed, fmt.Sprintf("%s in %s, which failed", write(*got), f.name))
		case got == nil:
			row.note = "the file does not have it"
		case row.measured == nil:
			row.measured = got
		case more:
			*row.measured += *got
		default:
			*row.measured = max(*row.measured, *got)
		}
	}
	row.beside = []string{format.Missing, cmp.Or(strings.Join(files, ", "), format.Missing)}
	if len(failed) > 0 {
		row.note, row.doubt = strings.Join(failed, "; "), "NO: a test failed"
	} else if row.measured != nil {
		row.note = ""
	}
	return row
}

func seconds(s float64) string { return format.Duration(time.Duration(s * float64(time.Second))) }

// sumOf returns a figure that is the sum of a value over the rows of a test.
func sumOf(value string) func(*testFile) *float64 {
	return func(f *testFile) (sum *float64) {
		for _, row := range f.Rows {
			if v, has := row.Values[value]; has {
				if sum == nil {
					sum = new(float64)
				}
				*sum += v
			}
		}
		return sum
	}
}

// killsOf returns a figure of the row that sums up the kills.
func killsOf(of func(*stats.Summary) float64) func(*testFile) *float64 {
	return func(f *testFile) *float64 {
		for _, row := range f.Rows {
			if strings.HasSuffix(row.Name, " kills") && row.Latency != nil {
				return number(of(row.Latency))
			}
		}
		return nil
	}
}

// checkNamed returns a figure that is what a check of a test got.
func checkNamed(name string) func(*testFile) *float64 {
	return func(f *testFile) *float64 {
		for _, c := range f.Checks {
			if c.Name == name {
				return number(c.Got)
			}
		}
		return nil
	}
}
