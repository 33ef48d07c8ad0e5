package describe

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
)

// TestExplainLateEntry: an explanation says what late entry costs, and on how many pairs that rests.
func TestExplainLateEntry(t *testing.T) {
	for _, c := range []struct {
		shim *api.Shim
		want []string // nil: nothing is said
	}{
		{nil, nil},
		{&api.Shim{LateCompared: &api.LateCompared{Pairs: 3}}, nil},
		{&api.Shim{LateRequests: 5, LateFor: time.Second}, []string{"entered late since the process started: 5; they left the device to others for 1.00s", "is not known"}},
		{&api.Shim{LateRequests: 5, LateCompared: &api.LateCompared{Pairs: 5}}, []string{"at once: 5, too few"}},
		{
			&api.Shim{LateRequests: 900, LateCompared: &api.LateCompared{Pairs: 64, Ratio: 1.0125, Low: 0.99, High: 1.03, GivenUp: 2}},
			[]string{"in 64 pairs", "took 1.012 times as long (median; 0.990 to 1.030 with a confidence of 95 %)", "slower: 2"},
		},
	} {
		f := Facts{Process: &api.Process{PID: 1, Shim: c.shim}}
		got := Write(Explain(f), 1000)
		if strings.Contains(got, "Late entry:") != (c.want != nil) {
			t.Errorf("%+v: got\n%s", c.shim, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%+v: got\n%s\nwant %q", c.shim, got, want)
			}
		}
	}
}
