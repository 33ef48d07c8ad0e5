package bench

import (
	"reflect"
	"testing"
	"time"
)

// TestMergeRounds merges three measurements of a phase. All samples count, rates are means,
// and counts are added.
func TestMergeRounds(t *testing.T) {
	part := func(us, answers, rate, lost float64, late uint64) Phase {
		p := Phase{
			Name:   lateAuto,
			Online: []OnlineResult{newOnlineResult("online", &Answered{SamplesUs: []float64{us, us}, Took: time.Second, Unanswered: 1})},
			Batch:  []BatchResult{{Name: "batch", Rate: rate}},
			Lost:   &lost,
		}
		p.Online[0].Rate = answers
		if late > 0 {
			p.Ahead = &AheadResult{Taken: 2 * late, Came: late, SavedUs: us}
			p.Late = &LateResult{Requests: late, Early: 1, LeftUs: us, Compared: compared([]ratioCount{{1 + us/10000, 1.5, late}})}
		}
		p.sum()
		return p
	}
	var p Phase
	p.merge(part(100, 10, 300, 0.1, 0))
	p.merge(part(200, 20, 600, 0.2, 1))
	p.merge(part(300, 60, 900, 0.6, 3))
	if p.Latency.Count != 6 || p.Latency.P50 != 200*time.Microsecond || p.Latency.Max != 300*time.Microsecond {
		t.Errorf("got latency %+v, want six samples around 200 us", p.Latency)
	}
	if o := p.Online[0]; o.Latency.Count != 6 || o.Rate != 30 || o.Unanswered != 3 {
		t.Errorf("got %+v, want six samples, 30 answers a second, 3 unanswered", o)
	}
	if p.BatchRate != 600 || *p.Lost < 0.299 || *p.Lost > 0.301 {
		t.Errorf("got batch rate %g and %g lost, want 600 and 0.3", p.BatchRate, *p.Lost)
	}
	if want := (AheadResult{Taken: 8, Came: 4, SavedUs: 275}); *p.Ahead != want {
		t.Errorf("got %+v, want %+v", *p.Ahead, want)
	}
	pairs := []ratioCount{{1.02, 1.5, 1}, {1.03, 1.5, 3}}
	if want := (LateResult{Requests: 4, Early: 2, LeftUs: 275, Compared: &LateCompared{Pairs: 4, Bins: pairs}}); !reflect.DeepEqual(*p.Late, want) {
		t.Errorf("got %+v, want %+v", *p.Late, want)
	}
}
