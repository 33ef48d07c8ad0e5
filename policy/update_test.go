package policy

import (
	"slices"
	"testing"

	"github.com/giveway/giveway/sched"
)

// TestUpdateSetsGivenParametersAndResetsTheOthers updates a running policy with
// one parameter, and then with none.
func TestUpdateSetsGivenParametersAndResetsTheOthers(t *testing.T) {
	total := 0
	for _, info := range List() {
		total += len(info.Params)
		for i, param := range info.Params {
			value := "7ms"
			if param.Range[0] == 'a' && param.Range[2] == 'w' { // a whole number
				value = "3"
			}
			changed, err := Choose(info.Name, map[string]string{param.Name: value})
			if err != nil {
				t.Fatal(err)
			}
			defaults, err := Choose(info.Name, nil)
			if err != nil {
				t.Fatal(err)
			}
			p := defaults.Make()
			changed.Update(p)
			want := slices.Clone(info.Params)
			want[i].Value = value
			if got := paramsOf(p).describe(); !slices.Equal(got, want) {
				t.Errorf("%s with %s=%s: got %v, want %v", info.Name, param.Name, value, got, want)
			}
			if got := paramsOf(changed.Make()).describe(); !slices.Equal(got, want) {
				t.Errorf("new %s with %s=%s: got %v, want %v", info.Name, param.Name, value, got, want)
			}
			defaults.Update(p)
			if got := paramsOf(p).describe(); !slices.Equal(got, info.Params) {
				t.Errorf("%s with its defaults again: got %v, want %v", info.Name, got, info.Params)
			}
		}
	}
	if total < 30 {
		t.Errorf("got %d parameters of all policies, want at least 30", total)
	}
}

// TestParametersChangeWhileThePolicyRuns checks that giveway keeps the turn that
// has begun when its turn length changes.
func TestParametersChangeWhileThePolicyRuns(t *testing.T) {
	l := newNode(t, "giveway", nil)
	batch := sched.Queue{Attr: sched.Attr{Class: sched.Batch}}
	first, second := l.open(batch, saturating), l.open(batch, saturating)
	l.run(10 * ms)
	choice, err := Choose("giveway", map[string]string{"turn": "20ms"})
	if err != nil {
		t.Fatal(err)
	}
	l.events = append(l.events, sched.Event{Kind: sched.PolicyChosen, Choice: choice})
	l.run(15 * ms)
	if len(l.policies) != 1 || !near(first.served, 20*ms, ms) || !near(second.served, 5*ms, ms) {
		t.Errorf("got %d instances, %v and %v served; want 1, 20ms and 5ms", len(l.policies), first.served, second.served)
	}
}
