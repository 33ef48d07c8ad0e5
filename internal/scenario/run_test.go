package scenario

import (
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/yamlfile"
)

// small is a scenario that takes milliseconds to run.
const small = `
name: small
warmup: 50ms
length: 200ms
policy: {name: giveway, turn: 20ms}
devices: [{model: nvidia-h200}]
clients:
  - name: serve
    class: online
    arrival: {poisson: 100/s}
    park: 2
    lead: 200us
    kernels: {count: 10, time: {normal: 50us, jitter: 10%}}
  - name: fill
    count: 3
    class: batch
    arrival: {closed: 0, depth: 4}
    kernels: {time: {lognormal: 200us, jitter: 50%}}
`

func parse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("x.yaml", []byte(text), traces)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, s *Scenario, o Options, policies ...string) Outcome {
	t.Helper()
	out, err := s.Run(policies, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRunUnderEachPolicy(t *testing.T) {
	out := run(t, parse(t, small), Options{}, Native, "giveway", "giveway:turn=5ms", "rr")
	var labels, alone []string
	for _, r := range out.Runs {
		labels = append(labels, r.Policy)
		if len(r.Result.Segments) > 0 || len(r.Actions) > 0 {
			t.Errorf("%s: got a recorded timeline, want none", r.Policy)
		}
		if got, want := r.Result.Steps > 0, r.Policy != Native; got != want {
			t.Errorf("%s: got a daemon: %v, want %v", r.Policy, got, want)
		}
	}
	for _, c := range out.Alone {
		alone = append(alone, c.Name)
	}
	same(t, "policies", labels, []string{"native", "giveway:turn=20ms", "giveway:turn=5ms", "rr"})
	same(t, "alone", alone, []string{"serve", "fill-1", "fill-2", "fill-3"})
	for i, c := range out.Alone {
		if with := out.Runs[0].Result.Clients[i]; c.Queue != with.Queue || c.Class != with.Class {
			t.Errorf("%s: got queue %d alone and %d together, want the same", c.Name, c.Queue, with.Queue)
		}
	}
	if native, giveway := out.Runs[0].Result.Clients[0].Latency.P99, out.Runs[1].Result.Clients[0].Latency.P99; giveway*2 > native {
		t.Errorf("got P99 %v with giveway and %v native, want at most half", giveway, native)
	}
}

func TestRunRecordsUpToTheLimits(t *testing.T) {
	out := run(t, parse(t, small), Options{Segments: 100, Actions: 5}, "giveway")
	if n := len(out.Runs[0].Result.Segments); n != 100 {
		t.Errorf("got %d segments, want 100", n)
	}
	if n := len(out.Runs[0].Actions); n != 5 {
		t.Errorf("got %d actions, want 5", n)
	}
}

// TestOutcomeFollowsFromTheSeed checks that the outcome depends on the seed and not
// on the number of CPUs.
func TestOutcomeFollowsFromTheSeed(t *testing.T) {
	outcome := func(seed uint64, procs int) Outcome {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		s := parse(t, small)
		s.Config.Seed = seed
		out := run(t, s, Options{Segments: 1000, Actions: 1000}, Native, "giveway", "mlfq")
		out.Wall = 0
		return out
	}
	first := outcome(1, 1)
	if !reflect.DeepEqual(first, outcome(1, 4)) {
		t.Error("same seed: got different outcomes")
	}
	if reflect.DeepEqual(first.Runs, outcome(2, 4).Runs) {
		t.Error("another seed: got the same outcome")
	}
}

// TestAloneDoesNotDependOnOtherClients compares a client alone in a scenario with and
// without other clients.
func TestAloneDoesNotDependOnOtherClients(t *testing.T) {
	s := parse(t, small)
	together := run(t, s, Options{}, Native)
	text, _, _ := strings.Cut(small, "  - name: fill")
	alone := run(t, parse(t, text), Options{}, Native)
	same(t, "serve", together.Alone[0], alone.Alone[0])
	same(t, "serve, native", alone.Runs[0].Result.Clients[0], alone.Alone[0])
}

func TestRunErrors(t *testing.T) {
	for policy, want := range map[string]string{
		"givewy":            "did you mean giveway?",
		"best":              "there is no policy \"best\"; there are: ",
		"giveway:turn":      "\"turn\" is not a parameter with a value, such as turn=20ms",
		"giveway:turn=5":    "parameter turn: \"5\" is not a duration from",
		"giveway:trun=5ms":  "it has no parameter \"trun\"; it has: ",
		"native:turn=20ms":  "it has no parameter \"turn\"",
		"giveway:turn=5ms,": "\"\" is not a parameter with a value",
	} {
		_, err := parse(t, small).Run([]string{Native, policy}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", policy, err, want)
		}
		if check := CheckPolicy(policy); check == nil || check.Error() != err.Error() {
			t.Errorf("%s: CheckPolicy returns %v, Run returns %v; want the same", policy, check, err)
		}
	}
}

func TestSplitPolicies(t *testing.T) {
	for list, want := range map[string][]string{
		"native":         {"native"},
		"native,giveway": {"native", "giveway"},
		"giveway:turn=20ms,slice=200us,native, rr:quantum=5ms": {"giveway:turn=20ms,slice=200us", "native", "rr:quantum=5ms"},
		"giveway,turn=20ms": {"giveway", "turn=20ms"},
	} {
		if got := SplitPolicies(list); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", list, got, want)
		}
	}
}

func TestParseValues(t *testing.T) {
	for text, want := range map[string]time.Duration{"50/s": 20 * ms, "20ms": 20 * ms, "0.5/s": 2 * time.Second, "3/s": 333333333} {
		if got, err := parseEvery(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]float64{"5": 5, "5B": 5, "5kB": 5e3, "5.3TB": 5.3e12, "2 GB": 2e9} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]float64{"2%": 0.02, "0.5": 0.5, "100 %": 1} {
		if got, err := yamlfile.ParseRatio(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"NaN", "inf", "x%", ""} {
		if got, err := yamlfile.ParseRatio(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
