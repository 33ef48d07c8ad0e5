package amdbench

import (
	"math"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// Result is all that was found. As JSON its fields are added to, never changed.
type Result struct {
	Figures    string        `json:"figures"` // what every figure in Models' rows is
	Seed       uint64        `json:"seed"`
	Rounds     int           `json:"rounds"`
	Programs   int           `json:"programs"`
	OnlineWork time.Duration `json:"online_work_ns"`
	Models     []ModelResult `json:"models"`
	Published  []Published   `json:"published"`
}

// ModelResult is what was found on one model.
type ModelResult struct {
	Name       string      `json:"name"`
	Doc        string      `json:"doc"`
	Parameters []Parameter `json:"parameters"`
	Rows       []Row       `json:"rows"`
}

// Parameter is one number that the figures follow from.
type Parameter struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Kind   Kind   `json:"kind"`
	Source string `json:"source"`
}

// Kind is how much a number is to be believed. None here is measured: there was no
// AMD GPU.
type Kind string

const (
	FromDriver    Kind = "published" // in the driver's source, or in a data sheet
	FromElsewhere Kind = "published, unconfirmed"
	Assumed       Kind = "modelled"
)

// Published is a figure of somebody else's.
type Published struct {
	Source string `json:"source"`
	What   string `json:"what"`
	Value  string `json:"value"`
}

// Row is one way with so many offline queues.
type Row struct {
	Queues int `json:"queues"`
	Way    Way `json:"way"`

	// From the request: until the last offline queue is off and the device runs
	// on, so that it is the request's own; and until the request is answered.
	// Natively the device is never its own.
	Own    *stats.Summary `json:"own_device,omitempty"`
	Answer stats.Summary  `json:"answer"`
	// What the caller waits for: all calls that take offline queues off, and
	// that put them back.
	Unmap *stats.Summary `json:"unmap,omitempty"`
	Remap *stats.Summary `json:"remap,omitempty"`
	// Hiccup is how long nothing ran on the device, the online request included,
	// while queues were taken off.
	Hiccup *stats.Summary `json:"hiccup,omitempty"`

	Calls       float64 `json:"calls"`   // for a request, stops and starts
	Updates     float64 `json:"updates"` // of the runlist, or packets to MES, for a request
	Utilisation float64 `json:"hqd_utilisation"`
	Mapped      float64 `json:"hqd_mapped"` // as the driver counts: with work or without
	Stalled     float64 `json:"stalled"`    // part of the time in which nothing ran
	OfflineKept float64 `json:"offline_kept"`

	VsOneByOne *SpeedUp `json:"vs_one_by_one,omitempty"`
	VsStock    *SpeedUp `json:"vs_stock,omitempty"`
}

// SpeedUp is how many times as long the other way takes, of means.
type SpeedUp struct {
	Own    float64 `json:"own_device"`
	Answer float64 `json:"answer"`
	Unmap  float64 `json:"unmap"`
	Remap  float64 `json:"remap"`
	Hiccup float64 `json:"hiccup,omitempty"`
}

// compare fills in the speed-ups of one number of queues.
func compare(rows []Row) {
	find := func(w Way) *Row {
		for i := range rows {
			if rows[i].Way == w {
				return &rows[i]
			}
		}
		return nil
	}
	for i := range rows {
		if r := &rows[i]; r.Way == Batch || r.Way == Stock {
			r.VsOneByOne = r.against(find(OneByOne))
			if r.Way == Batch {
				r.VsStock = r.against(find(Stock))
			}
		}
	}
}

func (r *Row) against(other *Row) *SpeedUp {
	if other == nil {
		return nil
	}
	times := func(a, b *stats.Summary) float64 {
		if b.Mean <= 0 {
			return 0
		}
		return round(float64(a.Mean) / float64(b.Mean))
	}
	return &SpeedUp{
		Own: times(other.Own, r.Own), Answer: times(&other.Answer, &r.Answer),
		Unmap: times(other.Unmap, r.Unmap), Remap: times(other.Remap, r.Remap), Hiccup: times(other.Hiccup, r.Hiccup),
	}
}

// round keeps what can be told apart, so that one machine's arithmetic is
// another's.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }
