package promcheck

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func (p *prometheus) want(expr string, want float64) {
	p.t.Helper()
	if got := p.value(expr); math.Abs(got-want) > 0.001+0.001*math.Abs(want) {
		p.t.Errorf("%s: got %v, want %v", expr, got, want)
	}
}

// TestGPUHours: GPU hours are summed over nodes and devices, also if a daemon was restarted.
func TestGPUHours(t *testing.T) {
	p := newPrometheus(t)
	rates := map[string]float64{
		`giveway_given_away_seconds_total{class="batch", device="0", instance="a"}`:    0.5,
		`giveway_given_away_seconds_total{class="batch", device="1", instance="a"}`:    0.25,
		`giveway_given_away_seconds_total{class="batch", device="0", instance="b"}`:    0.125,
		`giveway_given_away_seconds_total{class="standard", device="0", instance="b"}`: 0.0625,
		`giveway_taken_back_seconds_total{device="0", instance="a"}`:                   0.1,
		`giveway_taken_back_seconds_total{device="0", instance="b"}`:                   0.2,

		`giveway_process_device_seconds_total{class="batch", device="0", instance="a", namespace="x", pod="j-0"}`:     0.75,
		`giveway_process_device_seconds_total{class="batch", device="0", instance="b", namespace="x", pod="j-1"}`:     0.125,
		`giveway_process_given_away_seconds_total{class="batch", device="0", instance="a", namespace="x", pod="j-0"}`: 0.5,
		`giveway_process_given_away_seconds_total{class="batch", device="0", instance="b", namespace="x", pod="j-1"}`: 0.125,
		`giveway_process_given_away_seconds_total{class="batch", device="0", instance="b", namespace="y", pod="j-0"}`: 0.25,
		`giveway_process_taken_back_seconds_total{class="online", device="0", instance="a", namespace="prod"}`:        0.1,
		`giveway_process_taken_back_seconds_total{class="online", device="0", instance="b", namespace="prod"}`:        0.2,
	}
	p.run(70, rates)
	check := func() {
		t.Helper()
		p.want(`class:giveway_gpu_hours_given_away:increase1h{class="batch"}`, 0.875)
		p.want(`class:giveway_gpu_hours_given_away:increase1h{class="standard"}`, 0.0625)
		p.want(`giveway:gpu_hours_taken_back:increase1h`, 0.3)
		p.want(`namespace_class:giveway_gpu_hours_given_away:increase1h{namespace="x",class="batch"}`, 0.625)
		p.want(`namespace_class:giveway_gpu_hours_given_away:increase1h{namespace="y"}`, 0.25)
		p.want(`namespace:giveway_gpu_hours_taken_back:increase1h{namespace="prod"}`, 0.3)
		p.want(`namespace_class:giveway_gpus:rate5m`, 0.875)
	}
	check()
	clear(p.last) // the daemons are restarted, and begin at zero
	p.run(120, rates)
	check()
	p.want(`sum(sum_over_time(class:giveway_gpu_hours_given_away:increase1h[2h:1h]))`, 2*0.9375)
}

// TestServices: the SLO of a service is that of its pods on all nodes, whatever names they have.
func TestServices(t *testing.T) {
	rates := map[string]float64{}
	add := func(namespace, container, pod string, met, missed float64) {
		for result, rate := range map[string]float64{"met": met, "missed": missed} {
			rates[labelsOf("giveway_process_slo_requests_total", "class", "online", "container", container, "instance", "node-of-"+pod, "namespace", namespace, "pod", pod, "result", result)] = rate
		}
	}
	add("a", "main", "web-7d4b9c8f6d-x2bcd", 9, 1)
	add("a", "main", "web-7d4b9c8f6d-zz9zz", 8, 2) // a Deployment
	add("b", "main", "web-7d4b9c8f6d-x2bcd", 1, 1) // the same name elsewhere
	add("a", "main", "store-0", 1, 0)
	add("a", "main", "store-12", 0, 1)               // a StatefulSet
	add("a", "main", "encoder-h7k2p", 3, 1)          // a DaemonSet
	add("a", "main", "nightly-28491230-q6xzw", 0, 2) // a CronJob
	add("a", "main", "notebook", 5, 0)               // no owner
	add("a", "llama-server", "", 1, 3)               // without pod: true
	add("a", "main", "other", 7, 0)                  // more pods than series
	add("a", "main", "unused-0", 0, 0)               // it has an SLO and no requests
	p := newPrometheus(t)
	p.run(10, rates)
	for service, want := range map[string]float64{"web": 0.85, "store": 0.5, "encoder": 0.75, "nightly": 0, "notebook": 1, "llama-server": 0.25, "other": 1} {
		p.want(labelsOf("namespace_service:giveway_slo_met:ratio_rate5m", "namespace", "a", "service", service), want)
	}
	p.want(`namespace_service:giveway_slo_met:ratio_rate5m{namespace="b",service="web"}`, 0.5)
	p.want(`namespace_service:giveway_slo_requests:rate5m{namespace="a",service="web"}`, 20)
	if all := p.query("namespace_service:giveway_slo_met:ratio_rate5m"); len(all) != 8 {
		t.Errorf("got %d services: %v", len(all), all)
	}
}

// labelsOf returns a series; empty labels are left out.
func labelsOf(name string, pairs ...string) string {
	var all []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, pairs[i]+`="`+pairs[i+1]+`"`)
		}
	}
	return name + "{" + strings.Join(all, ", ") + "}"
}

// alertTests are what makes each alert fire after a time, and what is close to that and does not.
var alertTests = []struct {
	alert    string
	minutes  int
	bad, may map[string]float64 // rates in a second, and gauges as value(v)
}{
	{"GivewayDown", 4, map[string]float64{`up{job="giveway"}`: value(0)}, map[string]float64{`up{job="giveway"}`: value(1)}},
	{"GivewaySLOMissed", 17, slo(90, 10), slo(97, 3)},
	{
		"GivewaySwitchingLoss", 17,
		map[string]float64{`giveway_device_state_seconds_total{state="switching"}`: 0.3},
		map[string]float64{`giveway_device_state_seconds_total{state="switching"}`: 0.1, `giveway_device_state_seconds_total{state="held"}`: 0.9},
	},
	{"GivewayPolicyOverruled", 3, map[string]float64{`giveway_policy_overruled`: value(1)}, map[string]float64{`giveway_policy_overruled`: value(0)}},
	{
		"GivewayPriorityInversion", 12,
		map[string]float64{`giveway_priority_inversion_seconds_total{device="0"}`: 0.02},
		map[string]float64{`giveway_priority_inversion_seconds_total{device="0"}`: 0.005},
	},
	{"GivewayGuardianGone", 3, map[string]float64{`giveway_guardian_up`: value(0)}, map[string]float64{`giveway_guardian_up`: value(1)}},
	{"GivewayActionsFailing", 17, actions(90, 10), actions(99, 1)},
	{"GivewayConfigRefused", 8, map[string]float64{`giveway_config_accepted`: value(0)}, map[string]float64{`giveway_config_accepted`: value(1)}},
	{"GivewayShareNotGiven", 35, shares(0.75, 0.5), shares(0.75, 0.7)},
	{"GivewayShareNotGiven", 35, shares(0.1, 0.01), shares(0.01, 0.005)}, // a hundredth of a GPU is little
}

// value is the rate that stands for a gauge with a value: see run.
func value(v float64) float64 { return -1 - v }

func slo(met, missed float64) map[string]float64 {
	return map[string]float64{`giveway_slo_requests_total{class="online", result="met"}`: met, `giveway_slo_requests_total{class="online", result="missed"}`: missed}
}

func actions(done, refused float64) map[string]float64 {
	return map[string]float64{`giveway_actions_total{outcome="done", verb="stop"}`: done, `giveway_actions_total{outcome="refused", verb="stop"}`: refused}
}

func shares(promised, given float64) map[string]float64 {
	return map[string]float64{
		`giveway_process_share_promised_seconds_total{class="batch", device="0", pod="j-0"}`: promised,
		`giveway_process_share_given_seconds_total{class="batch", device="0", pod="j-0"}`:    given,
		// Another process has what the first one lacks.
		`giveway_process_share_promised_seconds_total{class="batch", device="0", pod="j-1"}`: 1 - promised,
		`giveway_process_share_given_seconds_total{class="batch", device="0", pod="j-1"}`:    1 - given,
	}
}

// TestAlerts: each alert fires after its time, not at once, and not if all is well.
func TestAlerts(t *testing.T) {
	tested := map[string]bool{}
	for _, tt := range alertTests {
		tested[tt.alert] = true
		p := newPrometheus(t)
		if p.run(2, tt.bad); p.firing[tt.alert] && tt.minutes > 4 {
			t.Errorf("%s fires after two minutes", tt.alert)
		}
		if p.run(tt.minutes, tt.bad); !p.firing[tt.alert] || len(p.firing) != 1 {
			t.Errorf("%s does not fire after %d minutes, or others do: %v", tt.alert, 2+tt.minutes, p.firing)
		}
		p = newPrometheus(t)
		if p.run(2+tt.minutes, tt.may); len(p.firing) > 0 {
			t.Errorf("%s: all is well, and yet %v fire", tt.alert, p.firing)
		}
	}
	for _, g := range loadRules(t) {
		if i := slices.IndexFunc(g.Rules, func(r rule) bool { return r.Alert != "" && !tested[r.Alert] }); i >= 0 {
			t.Errorf("no test lets %s fire", g.Rules[i].Alert)
		}
	}
}
