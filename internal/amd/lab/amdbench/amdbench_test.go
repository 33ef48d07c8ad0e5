package amdbench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func run(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (m *ModelResult) row(t *testing.T, way Way, queues int) *Row {
	t.Helper()
	for i := range m.Rows {
		if r := &m.Rows[i]; r.Way == way && r.Queues == queues {
			return r
		}
	}
	t.Fatalf("%s: got no row of %s with %d queues", m.Name, way, queues)
	return nil
}

// TestUpdatesFollowFromTheDriver checks the figures against what the driver does. With
// the hardware scheduler a call is one update of the runlist: one by one needs an update
// for each queue, the stock suspend and the batch need one for all. So the batch gains
// nothing over the stock suspend for the online request, only for the caller.
func TestUpdatesFollowFromTheDriver(t *testing.T) {
	r := run(t, Config{Queues: []int{1, 10, 64}, Rounds: 50})
	hws, mes := &r.Models[0], &r.Models[1]
	for _, n := range []int{1, 10, 64} {
		one, stock, batch := hws.row(t, OneByOne, n), hws.row(t, Stock, n), hws.row(t, Batch, n)
		if one.Updates != 2*float64(n) || stock.Updates != 2 || batch.Updates != 2 || batch.Calls != 2 {
			t.Errorf("%d queues: got %v, %v, %v updates and %v calls of the batch; want %d, 2, 2 and 2", n, one.Updates, stock.Updates, batch.Updates, batch.Calls, 2*n)
		}
		if gain := float64(stock.Exclusive.Mean) / float64(batch.Exclusive.Mean); math.Abs(gain-1) > 0.03 {
			t.Errorf("%d queues: got the device to itself %.2f times as soon as with the stock suspend, want 1", n, gain)
		}
		if batch.Unmap.Mean >= stock.Unmap.Mean {
			t.Errorf("%d queues: got %v to unmap in a batch, %v with the stock suspend; want the batch faster", n, batch.Unmap.Mean, stock.Unmap.Mean)
		}
		if least := batch.Exclusive.Mean * time.Duration(n) / 2; one.Exclusive.Mean < least {
			t.Errorf("%d queues one by one: got the device to itself after %v, want at least %v", n, one.Exclusive.Mean, least)
		}
		// MES takes a packet for each queue, whatever the way.
		for _, way := range []Way{OneByOne, Stock, Batch} {
			if got := mes.row(t, way, n).Updates; got != 2*float64(n) {
				t.Errorf("MES, %s, %d queues: got %v updates, want %d", way, n, got, 2*n)
			}
		}
	}
	// With more queues than slots, a native request waits for its turn.
	if native, batch := hws.row(t, Native, 64).Answer.P50, hws.row(t, Batch, 64).Answer.P99; native < 10*batch {
		t.Errorf("64 queues: got answers after %v natively, %v in a batch; want at least 10 times as long natively", native, batch)
	}
}

// TestCallChangesTheQueuesOfOneProcess checks this for both drivers.
func TestCallChangesTheQueuesOfOneProcess(t *testing.T) {
	r := run(t, Config{Queues: []int{16}, Rounds: 20, Processes: 4, Models: []string{"amd-hws"}})
	for _, way := range []Way{Stock, Batch} {
		if row := r.Models[0].row(t, way, 16); row.Calls != 8 || row.Updates != 8 {
			t.Errorf("%s: got %v calls and %v updates for 16 queues of 4 processes, want 8 and 8", way, row.Calls, row.Updates)
		}
	}
}

// TestFiguresAreConsistent checks that percentiles are in order, shares are from 0 to 1,
// and an answer takes at least as long as the request's work.
func TestFiguresAreConsistent(t *testing.T) {
	r := run(t, Config{Rounds: 20})
	for i := range r.Models {
		m := &r.Models[i]
		if want := 10 * len(AllWays); len(m.Rows) != want {
			t.Errorf("%s: got %d rows, want %d", m.Name, len(m.Rows), want)
		}
		for _, row := range m.Rows {
			for _, x := range []float64{row.Utilisation, row.Mapped, row.Stalled, row.OfflineKept} {
				if x < 0 || x > 1 {
					t.Errorf("%s: got share %v, want 0 to 1: %+v", m.Name, x, row)
				}
			}
			a := row.Answer
			if a.Count != r.Rounds || a.P50 > a.P95 || a.P95 > a.P99 || a.P99 > a.Max || a.P50 < r.OnlineWork || row.Utilisation > row.Mapped {
				t.Errorf("%s: the figures contradict each other: %+v", m.Name, row)
			}
		}
		for _, p := range m.Parameters {
			if p.Value == "" || p.Source == "" || p.Kind != FromDriver && p.Kind != FromElsewhere && p.Kind != Assumed {
				t.Errorf("%s: got parameter %+v, want a value, a source and a kind", m.Name, p)
			}
		}
	}
}

func TestResultFollowsFromTheSeed(t *testing.T) {
	c := Config{Queues: []int{3, 30}, Rounds: 10, Seed: 4}
	first := run(t, c)
	if !reflect.DeepEqual(first, run(t, c)) {
		t.Error("same seed: got different results, want the same")
	}
	c.Seed = 5
	if reflect.DeepEqual(first.Models, run(t, c).Models) {
		t.Error("another seed: got the same result, want another")
	}
}

func TestConfigErrors(t *testing.T) {
	for want, c := range map[string]Config{
		"0 queues; from 1 to 64 are modelled":      {Queues: []int{4, 0}},
		"65 queues; from 1 to 64 are modelled":     {Queues: []int{65}},
		"4 queues is listed twice":                 {Queues: []int{4, 4}},
		"there is no model \"nvidia-h200\"":        {Models: []string{"nvidia-h200"}},
		"9 processes; from 1 to 8 are modelled":    {Processes: 9},
		"-1 rounds; from 1 to 100000 are possible": {Rounds: -1},
	} {
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// TestPage checks that the page is well-formed, loads nothing, and labels every plot
// as modelled.
func TestPage(t *testing.T) {
	for _, c := range []Config{
		{Rounds: 5}, {Rounds: 3, Queues: []int{1}}, {Rounds: 3, Queues: []int{10}, Ways: []Way{Native, Batch}, Models: []string{"amd-mes"}},
	} {
		r := run(t, c)
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		for _, bad := range []string{"http://", "https://", "<script", "NaN", "Inf", "<no value>", "ZgotmplZ"} {
			if strings.Contains(text, bad) {
				t.Errorf("got %q in the page, want none", bad)
			}
		}
		figures, labelled := strings.Count(text, "<figure>"), strings.Count(text, `<span class="kind">modelled</span></h3>`)
		if figures != 6*len(r.Models) || labelled != figures {
			t.Errorf("got %d plots, %d of them labelled modelled; want %d", figures, labelled, 6*len(r.Models))
		}
		wellFormed(t, text)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
	}
}

func TestJSONReadsBack(t *testing.T) {
	r := run(t, Config{Queues: []int{2}, Rounds: 3})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Result
	if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(r, &again) {
		t.Errorf("the JSON does not read back: %v", err)
	}
}
