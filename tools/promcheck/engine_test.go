package promcheck

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// prometheus is the rules and the samples of a Prometheus that scrapes and evaluates once a
// minute. PromQL is computed by Prometheus' own engine.
type prometheus struct {
	t      *testing.T
	engine *promql.Engine
	rules  []ruleGroup
	series map[string]*promql.Series
	last   map[string]float64   // values of counters
	since  map[string]time.Time // since when alerts are active
	firing map[string]bool      // alerts, as labels
	now    time.Time
}

func newPrometheus(t *testing.T) *prometheus {
	return &prometheus{
		t: t, rules: loadRules(t), series: map[string]*promql.Series{}, last: map[string]float64{}, since: map[string]time.Time{}, firing: map[string]bool{}, now: time.Unix(1_000_000, 0),
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
			NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 },
		}),
	}
}

// add adds a sample of a series, which is named as in PromQL.
func (p *prometheus) add(series string, v float64) {
	p.t.Helper()
	l, err := parser.NewParser(parser.Options{}).ParseMetric(series)
	if err != nil {
		p.t.Fatal(err)
	}
	p.addTo(l, v)
}

func (p *prometheus) addTo(l labels.Labels, v float64) {
	s := p.series[l.String()]
	if s == nil {
		s = &promql.Series{Metric: l}
		p.series[l.String()] = s
	}
	s.Floats = append(s.Floats, promql.FPoint{T: p.now.UnixMilli(), F: v})
}

// Querier implements storage.Queryable.
func (p *prometheus) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, all ...*labels.Matcher) storage.SeriesSet {
		var found []storage.Series
		for _, name := range slices.Sorted(maps.Keys(p.series)) {
			if s := p.series[name]; !slices.ContainsFunc(all, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
				found = append(found, promql.NewStorageSeries(*s))
			}
		}
		slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
		return &seriesIterator{all: found, at: -1}
	}}, nil
}

// seriesIterator is a storage.SeriesSet.
type seriesIterator struct {
	all []storage.Series
	at  int
}

func (s *seriesIterator) Next() bool                      { s.at++; return s.at < len(s.all) }
func (s *seriesIterator) At() storage.Series              { return s.all[s.at] }
func (*seriesIterator) Err() error                        { return nil }
func (*seriesIterator) Warnings() annotations.Annotations { return nil }

// query returns the value of an expression now.
func (p *prometheus) query(expr string) promql.Vector {
	p.t.Helper()
	q, err := p.engine.NewInstantQuery(context.Background(), p, promql.NewPrometheusQueryOpts(false, 0), expr, p.now)
	if err != nil {
		p.t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	v, err := q.Exec(context.Background()).Vector()
	if err != nil {
		p.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(v)
}

// evaluate evaluates all rules, in order.
func (p *prometheus) evaluate() {
	p.t.Helper()
	active := map[string]bool{}
	for _, g := range p.rules {
		for _, r := range g.Rules {
			for _, s := range p.query(r.Expr) {
				b := labels.NewBuilder(s.Metric)
				if r.Record != "" {
					p.addTo(b.Set(model.MetricNameLabel, r.Record).Labels(), s.F)
					continue
				}
				key := b.Set(model.MetricNameLabel, r.Alert).Labels().String()
				if _, known := p.since[key]; !known {
					p.since[key] = p.now
				}
				wait, err := model.ParseDuration(r.For)
				if err != nil {
					p.t.Fatal(err)
				}
				if active[key] = true; p.now.Sub(p.since[key]) >= time.Duration(wait) {
					p.firing[r.Alert] = true
				}
			}
		}
	}
	maps.DeleteFunc(p.since, func(key string, _ time.Time) bool { return !active[key] })
}

// run lets minutes pass. rates are how much series grow in a second; a negative one stands for
// a gauge: see value.
func (p *prometheus) run(minutes int, rates map[string]float64) {
	p.t.Helper()
	for range minutes {
		p.now = p.now.Add(time.Minute)
		for series, rate := range rates {
			v := rate * 60
			if v += p.last[series]; rate < 0 {
				v = -1 - rate
			}
			p.last[series] = v
			p.add(series, v)
		}
		p.evaluate()
	}
}

// value returns the only value of an expression.
func (p *prometheus) value(expr string) float64 {
	p.t.Helper()
	v := p.query(expr)
	if len(v) != 1 {
		p.t.Fatalf("%s has %d values: %v", expr, len(v), v)
	}
	return v[0].F
}
