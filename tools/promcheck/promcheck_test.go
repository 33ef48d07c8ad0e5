// Package promcheck checks with Prometheus' own parsers what giveway writes for Prometheus:
// the metrics, the alerts, and the expressions of the dashboard.
package promcheck

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	all     = "../../internal/metrics/testdata/all.prom"
	hostile = "../../internal/metrics/testdata/hostile.prom"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, path string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(read(t, path)))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return families
}

// TestMetrics parses the metrics that internal/metrics compares its output with, and checks them
// by Prometheus' conventions.
func TestMetrics(t *testing.T) {
	for _, path := range []string{all, hostile} {
		for name, f := range parse(t, path) {
			if f.GetHelp() == "" || f.GetType() == dto.MetricType_UNTYPED || len(f.Metric) == 0 {
				t.Errorf("%s: %s has no help, no type or no sample", path, name)
			}
			for _, m := range f.Metric {
				if h := m.GetHistogram(); h != nil && h.GetSampleCount() != h.Bucket[len(h.Bucket)-1].GetCumulativeCount() {
					t.Errorf("%s: the last bucket of %s has not all samples", path, name)
				}
			}
		}
		problems, err := promlint.New(bytes.NewReader(read(t, path))).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", path, p.Metric, p.Text)
		}
	}
}

// TestHostileNames: a user's name that is made to look like a sample arrives as one label, with
// what cannot be printed replaced.
func TestHostileNames(t *testing.T) {
	found := false
	for _, m := range parse(t, hostile)["giveway_process_device_seconds_total"].Metric {
		for _, l := range m.Label {
			found = found || l.GetName() == "user" && l.GetValue() == "a\"} 1\ufffdgiveway_fake 1\ufffd# \\ \ufffd[2J\ufffd"
		}
	}
	if !found || parse(t, hostile)["giveway_fake"] != nil {
		t.Error("the name did not arrive as one label")
	}
}

// rule is an alert or a recording rule.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

type ruleGroup struct {
	Name, Interval string
	Rules          []rule
}

// loadRules returns the alerts and recording rules.
func loadRules(t *testing.T) []ruleGroup {
	t.Helper()
	var rules struct{ Groups []ruleGroup }
	d := yaml.NewDecoder(bytes.NewReader(read(t, "../../deploy/prometheus/giveway.rules.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	return rules.Groups
}

// recorded returns the names of the recorded series.
func recorded(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, g := range loadRules(t) {
		for _, r := range g.Rules {
			if r.Record != "" {
				names[r.Record] = true
			}
		}
	}
	return names
}

// expressions returns the expressions of the rules, of the dashboard and of docs/METRICS.md.
func expressions(t *testing.T) (exprs []string) {
	for _, g := range loadRules(t) {
		for _, r := range g.Rules {
			if exprs = append(exprs, r.Expr); r.Record != "" && r.Alert == "" {
				continue
			}
			if _, err := model.ParseDuration(r.For); err != nil || r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %q lacks a field, or its time is wrong: %v", r.Alert, err)
			}
		}
	}
	_, queries, _ := strings.Cut(string(read(t, "../../docs/METRICS.md")), "\n## Queries\n")
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]* \| (.*) \|$`).FindAllStringSubmatch(queries, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			exprs = append(exprs, m[1])
		}
	}
	var dashboard any
	if err := json.Unmarshal(read(t, "../../deploy/grafana/giveway.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	walk(dashboard, func(key string, v any) {
		text, _ := v.(string)
		switch {
		case key == "expr":
			exprs = append(exprs, variables.Replace(text))
		case key == "uid" && text != "${datasource}" && text != "giveway":
			t.Errorf("the dashboard names the data source %s; other installations have another", text)
		}
	})
	return exprs
}

// variables replaces the variables of Grafana.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$instance", ".*", "$device", ".*")

// walk calls f for every field of a JSON value.
func walk(v any, f func(key string, v any)) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			f(key, value)
			walk(value, f)
		}
	case []any:
		for _, value := range v {
			walk(value, f)
		}
	}
}

// TestExpressions: every expression is PromQL, and names metrics, labels and values of labels
// that exist, or series that are recorded.
func TestExpressions(t *testing.T) {
	families, names := parse(t, all), recorded(t)
	exprs := expressions(t)
	if len(exprs) < 60 {
		t.Fatalf("there are only %d expressions", len(exprs))
	}
	for _, text := range exprs {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok && v.Name != "up" && !names[v.Name] {
				checkSelector(t, text, v, families)
			}
			return nil
		})
	}
}

func checkSelector(t *testing.T, text string, v *parser.VectorSelector, families map[string]*dto.MetricFamily) {
	t.Helper()
	f := families[v.Name]
	if f == nil {
		f = families[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(v.Name, "")]
		if f.GetType() != dto.MetricType_HISTOGRAM {
			t.Errorf("%s: there is no metric %s", text, v.Name)
			return
		}
	}
	for _, m := range v.LabelMatchers {
		if m.Name == model.MetricNameLabel || m.Name == "instance" || m.Name == "job" {
			continue
		}
		if !hasMatch(f, m) {
			t.Errorf("%s: no sample of %s has %s", text, v.Name, m)
		}
	}
}

// hasMatch reports whether a sample has a label that matches.
func hasMatch(f *dto.MetricFamily, m *labels.Matcher) bool {
	for _, s := range f.Metric {
		for _, l := range s.Label {
			if l.GetName() == m.Name && m.Matches(l.GetValue()) {
				return true
			}
		}
	}
	return false
}

// TestRecordedSeries: docs/METRICS.md lists every recorded series, and no other.
func TestRecordedSeries(t *testing.T) {
	names := recorded(t)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+:[a-z0-9_:]+)` \\|").FindAllStringSubmatch(string(read(t, "../../docs/METRICS.md")), -1) {
		if !names[m[1]] {
			t.Errorf("docs/METRICS.md lists %s, which is not recorded", m[1])
		}
		delete(names, m[1])
	}
	for name := range names {
		t.Errorf("docs/METRICS.md does not list %s", name)
	}
}

// TestPanels: the panels of the dashboard do not overlap, and each has an id of its own.
func TestPanels(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(read(t, "../../deploy/grafana/giveway.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if g := p.GridPos; ids[p.ID] || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("panel %q has the id of another, or is outside the grid", p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
}
