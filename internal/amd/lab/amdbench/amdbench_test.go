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

func ask(t *testing.T, c Config) *Result {
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
	t.Fatalf("%s: no row of %s with %d queues", m.Name, way, queues)
	return nil
}

func mean(r *Row) time.Duration { return r.Own.Mean }

// TestWhatTheDriverDoes: the shape of the figures follows from the driver. On the
// hardware scheduler a call is one update of the runlist: one by one costs as many
// of them as there are queues, the stock suspend already one, and so the batch gives
// the online request nothing that the stock suspend does not.
func TestWhatTheDriverDoes(t *testing.T) {
	r := ask(t, Config{Queues: []int{1, 10, 64}, Rounds: 50})
	hws, mes := &r.Models[0], &r.Models[1]
	for _, n := range []int{1, 10, 64} {
		one, stock, batch := hws.row(t, OneByOne, n), hws.row(t, Stock, n), hws.row(t, Batch, n)
		if one.Updates != 2*float64(n) || stock.Updates != 2 || batch.Updates != 2 || batch.Calls != 2 {
			t.Errorf("%d queues: %v, %v, %v updates", n, one.Updates, stock.Updates, batch.Updates)
		}
		if gain := float64(mean(stock)) / float64(mean(batch)); math.Abs(gain-1) > 0.03 {
			t.Errorf("%d queues: the device is the request's own %.2f times as soon as with the stock suspend", n, gain)
		}
		if batch.Unmap.Mean >= stock.Unmap.Mean {
			t.Errorf("%d queues: a batch takes the caller %v, the stock suspend %v", n, batch.Unmap.Mean, stock.Unmap.Mean)
		}
		if least := batch.Own.Mean * time.Duration(n) / 2; one.Own.Mean < least {
			t.Errorf("%d queues one by one: own device after %v", n, one.Own.Mean)
		}
		// MES has a packet a queue whichever way it is asked.
		for _, way := range []Way{OneByOne, Stock, Batch} {
			if got := mes.row(t, way, n).Updates; got != 2*float64(n) {
				t.Errorf("MES, %s, %d queues: %v updates", way, n, got)
			}
		}
	}
	// Oversubscribed, native sharing has the request wait its turn.
	if native, batch := hws.row(t, Native, 64).Answer.P50, hws.row(t, Batch, 64).Answer.P99; native < 10*batch {
		t.Errorf("with 64 queues the answer takes %v natively, %v in a batch", native, batch)
	}
}

// TestPrograms: a call takes the queues of one program, patched or not.
func TestPrograms(t *testing.T) {
	r := ask(t, Config{Queues: []int{16}, Rounds: 20, Programs: 4, Models: []string{"amd-hws"}})
	for _, way := range []Way{Stock, Batch} {
		if row := r.Models[0].row(t, way, 16); row.Calls != 8 || row.Updates != 8 {
			t.Errorf("%s: %v calls and %v updates for 16 queues of 4 programs", way, row.Calls, row.Updates)
		}
	}
}

// TestFiguresHangTogether: distributions are in order, parts are parts, and an
// answer takes at least the request's own work.
func TestFiguresHangTogether(t *testing.T) {
	r := ask(t, Config{Rounds: 20})
	for i := range r.Models {
		m := &r.Models[i]
		if want := 10 * len(AllWays); len(m.Rows) != want {
			t.Errorf("%s: %d rows, want %d", m.Name, len(m.Rows), want)
		}
		for _, row := range m.Rows {
			for _, x := range []float64{row.Utilisation, row.Mapped, row.Stalled, row.OfflineKept} {
				if x < 0 || x > 1 {
					t.Errorf("%s: %+v: %v is not a part", m.Name, row, x)
				}
			}
			a := row.Answer
			if a.Count != r.Rounds || a.P50 > a.P95 || a.P95 > a.P99 || a.P99 > a.Max || a.P50 < r.OnlineWork || row.Utilisation > row.Mapped {
				t.Errorf("%s: %+v", m.Name, row)
			}
		}
		for _, p := range m.Parameters {
			if p.Value == "" || p.Source == "" || p.Kind != FromDriver && p.Kind != FromElsewhere && p.Kind != Assumed {
				t.Errorf("%s: parameter %+v", m.Name, p)
			}
		}
	}
}

func TestSameAgain(t *testing.T) {
	c := Config{Queues: []int{3, 30}, Rounds: 10, Seed: 4}
	first := ask(t, c)
	if !reflect.DeepEqual(first, ask(t, c)) {
		t.Error("the same again gave another result")
	}
	c.Seed = 5
	if reflect.DeepEqual(first.Models, ask(t, c).Models) {
		t.Error("another seed gave the same result")
	}
}

func TestRefuses(t *testing.T) {
	for want, c := range map[string]Config{
		"0 queues; from 1 to 64 are modelled":      {Queues: []int{4, 0}},
		"65 queues; from 1 to 64 are modelled":     {Queues: []int{65}},
		"4 queues is there twice":                  {Queues: []int{4, 4}},
		"there is no model \"nvidia-h200\"":        {Models: []string{"nvidia-h200"}},
		"9 programs; from 1 to 8 are modelled":     {Programs: 9},
		"-1 rounds; from 1 to 100000 are possible": {Rounds: -1},
	} {
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestPage checks that the page is well-formed, loads nothing, and labels every plot
// as modelled.
func TestPage(t *testing.T) {
	for _, c := range []Config{
		{Rounds: 5}, {Rounds: 3, Queues: []int{1}}, {Rounds: 3, Queues: []int{10}, Ways: []Way{Native, Batch}, Models: []string{"amd-mes"}},
	} {
		r := ask(t, c)
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

// TestJSON: what is written can be read again.
func TestJSON(t *testing.T) {
	r := ask(t, Config{Queues: []int{2}, Rounds: 3})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Result
	if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(r, &again) {
		t.Errorf("%v: read again it is not the same", err)
	}
}
