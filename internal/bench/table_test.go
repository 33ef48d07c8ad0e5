package bench

import (
	"strings"
	"testing"
)

// TestTableOfPairs checks that a case whose late requests were compared has columns that say so,
// and that others have not.
func TestTableOfPairs(t *testing.T) {
	many := compared([]ratioCount{{0.99, 0.995, 10}, {1.01, 1.015, 20}})
	few := compared([]ratioCount{{1, 1.005, 2}})
	for _, c := range []struct {
		late []*LateResult
		want string // in the rows; empty: there are no such columns
	}{
		{[]*LateResult{nil, {Requests: 5}}, ""},
		{[]*LateResult{nil, {Requests: 90, Compared: many}}, "30 1.011 (0.990 to 1.015)"},
		{[]*LateResult{nil, {Requests: 9, Compared: few}}, "2 -"},
	} {
		r := CaseResult{}
		for _, l := range c.late {
			r.Phases = append(r.Phases, Phase{Name: "x", Late: l, Batch: []BatchResult{{Rate: 7}}, BatchRate: 7})
		}
		var b strings.Builder
		if err := r.writeTable(&b); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(b.String()), " ")
		if strings.Contains(text, "late/at once") != (c.want != "") || !strings.Contains(text, c.want) {
			t.Errorf("got\n%s\nwant %q", b.String(), c.want)
		}
		if !strings.Contains(text, "7.00/s") && !strings.Contains(text, "7/s") {
			t.Errorf("got\n%s\nwithout the batch rate", b.String())
		}
	}
}
