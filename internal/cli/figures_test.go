package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/report"
	"github.com/giveway/giveway/internal/scenario"
)

// shown maps "GROUP, RUN, FIGURE" to the figure's text.
type shown map[string]string

func (s shown) add(group, run, figure, text string) {
	if text != "" {
		s[group+", "+run+", "+figure] = text
	}
}

var (
	latencyColumns = []string{"p50", "p90", "p99", "max"}
	workColumns    = []string{"rate", "kept"}
)

// TestFiguresAgree runs every scenario and compares the figures in the terminal's
// text, in the HTML report and in the JSON output.
func TestFiguresAgree(t *testing.T) {
	paths, err := filepath.Glob("../../scenarios/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			s, err := scenario.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			s.Config.Warmup, s.Config.Length, s.Config.Drain = 100*ms, min(s.Config.Length, 2*time.Second), 0
			o, err := s.Run(slices.Compact([]string{scenario.Native, s.Policy}), scenario.Options{})
			if err != nil {
				t.Fatal(err)
			}
			a := analysis.Of(&o)
			var text, page, data bytes.Buffer
			if err := errors.Join(printOutcome(&text, a), report.Write(&page, a), writeJSON(&data, toJSON(a))); err != nil {
				t.Fatal(err)
			}
			want := inText(text.String(), a)
			if len(want) < 2*len(a.Groups)*len(o.Runs) {
				t.Fatalf("got %d figures from the text, want at least 2 for each group and run:\n%s", len(want), &text)
			}
			compare(t, "HTML", inHTML(t, page.String()), want)
			compare(t, "JSON", inJSON(t, data.Bytes(), a), want)
			if f := a.Finding(); f == "" || !strings.Contains(text.String(), f) || !strings.Contains(page.String(), strings.ReplaceAll(f, "'", "&#39;")) {
				t.Errorf("the finding %q is not in the text and the page", f)
			}
		})
	}
}

func compare(t *testing.T, where string, got, want shown) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			t.Errorf("%s: %s: got %q, the terminal has %q", where, key, got[key], want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("%s: %s: got %q, the terminal has none", where, key, got[key])
		}
	}
}

// inText reads the figures of the terminal's tables.
func inText(text string, a *analysis.Analysis) shown {
	all := shown{}
	section, group := "", ""
	for line := range strings.Lines(text) {
		cells := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1)
		switch {
		case cells[0] == "latency" || cells[0] == "work":
			section = cells[0]
			continue
		case len(cells) < 2:
			if section == "work" {
				return all
			}
			continue
		case line[0] != ' ': // a row with class and name
			group = cells[1]
			if group == "together" {
				group = cells[0]
			}
			if g, _, ok := strings.Cut(group, " on "); ok {
				group = g
			}
			cells = cells[2:]
		}
		columns := latencyColumns
		switch {
		case section == "work":
			columns = workColumns
		case section == "latency" && cells[0] != "alone":
			columns = append(slices.Clone(columns), "p99/alone")
		case section == "":
			continue
		}
		if len(cells) == 2 && strings.HasSuffix(cells[1], "%") { // closed-loop clients together have no rate
			columns = columns[1:]
		}
		for i, figure := range columns {
			if 1+i < len(cells) && !strings.Contains(cells[1+i], " ") {
				all.add(group, cells[0], figure, cells[1+i])
			}
		}
		for _, note := range cells[1:] {
			if met, ok := strings.CutPrefix(note, "SLO met "); ok {
				all.add(group, cells[0], "slo", strings.Split(met, ",")[0])
			}
		}
	}
	return all
}

// cell is a cell of an HTML table: its text, and the small texts after it.
type cell struct {
	Text  string   `xml:",chardata"`
	Small []string `xml:"small"`
}

// rows returns the rows of the table in a section of a page.
func rows(t *testing.T, page, section string) [][]cell {
	t.Helper()
	_, page, _ = strings.Cut(page, `<section id="`+section+`">`)
	page, _, _ = strings.Cut(page, `</section>`)
	d := xml.NewDecoder(strings.NewReader(page))
	var all [][]cell
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "tr" {
			var row struct {
				Cells []cell `xml:",any"`
			}
			if err := d.DecodeElement(&row, &e); err != nil {
				t.Fatal(err)
			}
			for i := range row.Cells {
				row.Cells[i].Text = strings.TrimSpace(row.Cells[i].Text)
			}
			all = append(all, row.Cells)
		}
	}
}

// inHTML reads the figures of the tables of sections latency and work.
func inHTML(t *testing.T, page string) shown {
	t.Helper()
	all := shown{}
	group, column := "", map[string]int{}
	for i, row := range rows(t, page, "latency") {
		switch {
		case i == 0: // the head
			for j, c := range row {
				column[strings.ToLower(c.Text)] = j
			}
			continue
		case len(row) == 1:
			group = row[0].Text
			continue
		}
		run := row[0].Text
		for _, figure := range latencyColumns {
			all.add(group, run, figure, row[column[figure]].Text)
		}
		if run != "alone" {
			all.add(group, run, "p99/alone", cmp.Or(row[column["p99"]].Small[0], format.Missing))
		}
		if j, ok := column["slo met"]; ok && row[j].Text != "" {
			all.add(group, run, "slo", row[j].Text)
		}
	}
	var head []cell
	for i, row := range rows(t, page, "work") {
		if i == 0 {
			head = row
			continue
		}
		group, together := strings.CutSuffix(row[0].Text, " clients together")
		if together {
			all.add(group, "arrivals", "rate", row[1].Text)
		} else {
			all.add(group, "alone", "rate", row[1].Text)
		}
		for i, run := range head[2:] {
			all.add(group, run.Text, "rate", row[2+i].Text)
			all.add(group, run.Text, "kept", row[2+i].Small[0])
		}
	}
	return all
}

// inJSON formats the figures of the JSON output.
func inJSON(t *testing.T, data []byte, a *analysis.Analysis) shown {
	t.Helper()
	var v simJSON
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	text := func(x *float64, format func(float64) string) string {
		if x == nil {
			return "-"
		}
		return format(*x)
	}
	all := shown{}
	add := func(name, run string, c clientJSON) {
		byLatency := !c.FlatOut && (c.Class == "online" || c.Class == "standard")
		if !byLatency {
			all.add(name, run, "rate", format.Rate(c.Rate))
			return
		}
		if c.Latency == nil {
			for _, figure := range latencyColumns {
				all.add(name, run, figure, format.Missing)
			}
		} else {
			for i, d := range []time.Duration{c.Latency.P50, c.Latency.P90, c.Latency.P99, c.Latency.Max} {
				all.add(name, run, latencyColumns[i], format.Duration(d))
			}
		}
		if run != "alone" {
			all.add(name, run, "p99/alone", text(c.P99OverAlone, format.Ratio))
		}
		if c.SLOMet != nil {
			all.add(name, run, "slo", format.Percent(*c.SLOMet))
		}
	}
	for i, g := range v.Runs[0].Groups {
		add(g.Name, "alone", v.Alone[a.Groups[i].First])
	}
	for r, run := range v.Runs {
		for i, g := range run.Groups {
			add(g.Name, run.Policy, g)
			if !a.Groups[i].ByLatency {
				all.add(g.Name, run.Policy, "kept", text(g.WorkKept, format.Percent))
			}
			if g.Count == 1 { // a client's figure is its group's
				if got, want := text(run.Clients[a.Groups[i].First].RateOfAlone, format.Percent), text(g.WorkKept, format.Percent); got != want {
					t.Errorf("JSON: %s, %s: rate_of_alone is %s, work_kept %s", g.Name, run.Policy, got, want)
				}
			}
		}
		for i, c := range run.Classes {
			if class := a.Classes[i]; len(class.Groups) > 1 {
				all.add(c.Class, run.Policy, "kept", text(c.WorkKept, format.Percent))
				if class.OpenLoop {
					all.add(c.Class, run.Policy, "rate", format.Rate(c.Rate))
					if r == 0 {
						all.add(c.Class, "arrivals", "rate", format.Rate(class.Alone))
					}
				}
			}
		}
	}
	return all
}
