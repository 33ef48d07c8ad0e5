package daemon

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/internal/sim/live"
)

// shown returns the process that giveway ps --json prints, as generic JSON.
func shown(t *testing.T, c *client.Client, is func(api.Process) bool) map[string]any {
	t.Helper()
	all, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if !is(p) {
			continue
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	return nil
}

// example returns a value of an attribute other than its default, as JSON shows it.
func example(r *attr.Row) (value int64, inJSON any) {
	switch r.Type {
	case attr.TypeClass, attr.TypeWord:
		return r.Max, r.Format(r.Max)
	case attr.TypeBool:
		return 1, true
	case attr.TypeDuration:
		return int64(time.Minute), float64(time.Minute)
	}
	return r.Max, float64(r.Max)
}

// visible reports whether JSON has an attribute with its value and source. An expected
// arrival comes closer while the test runs.
func visible(m map[string]any, r *attr.Row, inJSON any, from attr.Source) bool {
	sources, _ := m["sources"].(map[string]any)
	got := m[r.Key]
	if ns, ok := got.(float64); ok && r == attr.Expect.Row() && ns > 0 && ns <= float64(time.Minute) {
		got = inJSON
	}
	return got == inJSON && sources[r.Name] == from.String()
}

// TestEveryAttributeByEveryWay walks the table: each attribute can be set in each way
// that its row claims, and giveway ps --json shows it with its source.
func TestEveryAttributeByEveryWay(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	c := client.New(socket)
	p := startShim(t, socket, "cuda")
	pid := p.Process.Pid
	// A process keeps the attributes of its last run, so rules come before runs.
	for _, way := range []struct {
		way  attr.Way
		from attr.Source
		give func(id attr.ID, value int64) (undo func(), err error)
	}{
		{attr.BySet, attr.FromSet, func(id attr.ID, value int64) (func(), error) {
			_, err := c.Change(t.Context(), pid, api.Change{Values: id.Of(value)})
			return func() {}, err
		}},
		{attr.ByHint, attr.FromHint, func(id attr.ID, value int64) (func(), error) {
			_, err := c.Hint(t.Context(), pid, api.Hint{Values: id.Of(value)})
			return func() {}, err
		}},
		{attr.ByRule, attr.FromRule, func(id attr.ID, value int64) (func(), error) {
			r := id.Row()
			cfg, err := config.Parse("x.yaml", fmt.Appendf(nil, "rules: [{match: {}, %s: %s}]", r.YAML(), r.Format(value)))
			if err != nil {
				return nil, err
			}
			setRules(d, cfg.Rules)
			return func() { setRules(d, nil) }, nil
		}},
		{attr.ByRun, attr.FromRun, func(id attr.ID, value int64) (func(), error) {
			run, err := c.Run(t.Context(), api.Run{Values: id.Of(value)})
			if err != nil {
				return nil, err
			}
			return run.Close, nil
		}},
		{attr.ByPage, attr.FromHint, func(id attr.ID, value int64) (func(), error) {
			if id.Row().HintKind == 0 {
				return nil, fmt.Errorf("%v has no kind of hint", id)
			}
			if id == attr.Expect {
				value = int64(shimpage.Monotonic(time.Now().Add(time.Duration(value))))
			}
			p.send("hint %d %d", id.Row().HintKind, value)
			return func() {}, nil
		}},
	} {
		for _, id := range attr.IDs(0) {
			r := id.Row()
			value, inJSON := example(r)
			undo, err := way.give(id, value)
			if (err == nil) != (r.Ways&way.way != 0) {
				t.Errorf("%v by %v: got %v; its row claims %v", id, way.way, err, r.Ways)
			}
			if err != nil {
				continue
			}
			find := func() map[string]any { return shown(t, c, func(p api.Process) bool { return p.PID == pid }) }
			eventually(t, fmt.Sprintf("ps --json shows %v by %v: %v", id, way.way, find()), func() bool { return visible(find(), r, inJSON, way.from) })
			undo()
			if err := d.Restore(ourselves); err != nil {
				t.Fatal(err)
			}
			if _, err := d.SetPolicy(ourselves, api.Policy{Name: "slo"}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestEveryAttributeByScenario is the same for scenario files, on simulated devices.
func TestEveryAttributeByScenario(t *testing.T) {
	var text strings.Builder
	text.WriteString("name: x\ndevices: [{model: nvidia-h200}]\nclients:\n")
	ids := attr.IDs(attr.ByScenario)
	for _, id := range ids {
		r := id.Row()
		value, _ := example(r)
		fmt.Fprintf(&text, "  - {name: %s, %s: %s, kernels: {time: 1ms}}\n", r.Name, r.YAML(), r.Format(value))
	}
	s, err := scenario.Parse("x.yaml", []byte(text.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := live.New(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDaemon(newShim(), b)
	socket, _ := serve(t, d)
	c := client.New(socket)
	for _, id := range ids {
		r := id.Row()
		_, inJSON := example(r)
		var m map[string]any
		eventually(t, "the simulated process of "+r.Name+" is found", func() bool {
			m = shown(t, c, func(p api.Process) bool { return p.Command == "sim: "+r.Name })
			return m != nil
		})
		if !visible(m, r, inJSON, attr.FromBackend) {
			t.Errorf("%v by scenario: ps --json shows %v", id, m)
		}
	}
	for _, id := range attr.IDs(0) {
		r := id.Row()
		value, _ := example(r)
		_, err := scenario.Parse("x.yaml", fmt.Appendf(nil, "name: x\ndevices: [{model: nvidia-h200}]\nclients: [{name: a, %s: %s, kernels: {time: 1ms}}]\n", r.YAML(), r.Format(value)), nil)
		if (err == nil) != (r.Ways&attr.ByScenario != 0) {
			t.Errorf("%v by scenario: got %v; its row claims %v", id, err, r.Ways)
		}
	}
}

// TestAttributesReachThePolicies sets attributes of two busy simulated processes: the
// policies that use them divide the device accordingly.
func TestAttributesReachThePolicies(t *testing.T) {
	s, err := scenario.Parse("x.yaml", []byte(`name: x
devices: [{model: nvidia-h200}]
clients:
  - {name: a, class: batch, arrival: {closed: 0, depth: 4}, kernels: {count: 20, time: 100us}}
  - {name: b, class: batch, arrival: {closed: 0, depth: 4}, kernels: {count: 20, time: 100us}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := live.New(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDaemon(newShim(), backend)
	serve(t, d)
	find := func(name string) (out api.Process) {
		for _, p := range d.Processes() {
			if p.Command == "sim: "+name {
				out = p
			}
		}
		return out
	}
	eventually(t, "both processes are found", func() bool { return find("a").PID != 0 && find("b").PID != 0 })
	for i, c := range []struct{ policy, more, less string }{
		{"share", "share=80%", "share=20%"},
		{"share-process", "share=80%", "share=20%"},
		{"nice", "nice=-10", "nice=10"},
		{"nice", "real-time=50", "real-time=0"},
		{"window", "focus=true", "focus=false"},
		{"wfq", "weight=4", "weight=1"},
		{"hpf", "priority=1", "priority=0"},
	} {
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: c.policy}); err != nil {
			t.Fatal(err)
		}
		more, less := "a", "b"
		if i%2 == 1 { // so that no result is left over from the case before
			more, less = less, more
		}
		for name, attrs := range map[string]string{more: c.more, less: c.less} {
			if _, err := d.Change(ourselves, find(name).PID, given(attrs)); err != nil {
				t.Fatal(err)
			}
		}
		served := func(name string) time.Duration { return find(name).Queues[0].Served }
		eventually(t, fmt.Sprintf("under %s a process with %s gets more than one with %s", c.policy, c.more, c.less), func() bool {
			a, b := served(more), served(less)
			time.Sleep(100 * time.Millisecond)
			a, b = served(more)-a, served(less)-b
			return a > 2*b && a > 20*time.Millisecond
		})
	}
}
