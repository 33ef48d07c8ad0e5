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

// TestHostileNames: a user's name that is made to look like a sample arrives as it is.
func TestHostileNames(t *testing.T) {
	found := false
	for _, m := range parse(t, hostile)["giveway_process_device_seconds_total"].Metric {
		for _, l := range m.Label {
			found = found || l.GetName() == "user" && l.GetValue() == "a\"} 1\ngiveway_fake 1\n# \\ \x1b[2J\ufffd"
		}
	}
	if !found || parse(t, hostile)["giveway_fake"] != nil {
		t.Error("the name did not arrive as it is")
	}
}

// expressions returns the expressions of the alerts and of the dashboard.
func expressions(t *testing.T) (exprs []string) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(read(t, "../../deploy/prometheus/giveway.rules.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if _, err := model.ParseDuration(r.For); err != nil || r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %q lacks a field, or its time is wrong: %v", r.Alert, err)
			}
			exprs = append(exprs, r.Expr)
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
var variables = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$device", ".*")

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
// that exist.
func TestExpressions(t *testing.T) {
	families := parse(t, all)
	exprs := expressions(t)
	if len(exprs) < 20 {
		t.Fatalf("there are only %d expressions", len(exprs))
	}
	for _, text := range exprs {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok && v.Name != "up" {
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
		if m.Name == labels.MetricName || m.Name == "instance" || m.Name == "job" {
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
