package amdbench

import (
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// Result is the result of a run. Its JSON fields are added to, never changed.
type Result struct {
	Figures    string        `json:"figures"` // of what kind the figures in the rows are
	Seed       uint64        `json:"seed"`
	Rounds     int           `json:"rounds"`
	Processes  int           `json:"programs"`
	OnlineWork time.Duration `json:"online_work_ns"`
	Models     []ModelResult `json:"models"`
	Published  []Published   `json:"published"`
}

// ModelResult is the result of one model.
type ModelResult struct {
	Name       string      `json:"name"`
	Doc        string      `json:"doc"`
	Parameters []Parameter `json:"parameters"`
	Rows       []Row       `json:"rows"`
}

// Parameter is a number that the figures follow from.
type Parameter struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Kind   Kind   `json:"kind"`
	Source string `json:"source"`
}

// Kind is how reliable a number is. None is measured: there was no AMD GPU.
type Kind string

const (
	FromDriver    Kind = "published" // in the driver's source, or in a data sheet
	FromElsewhere Kind = "published, unconfirmed"
	Assumed       Kind = "modelled"
)

// Published is a figure that others published.
type Published struct {
	Source string `json:"source"`
	What   string `json:"what"`
	Value  string `json:"value"`
}

// Row is the figures of one way with a number of offline queues.
type Row struct {
	Queues int `json:"queues"`
	Way    Way `json:"way"`

	// Exclusive is the time from a request until all offline queues are unmapped and
	// the device runs again. It is nil for Native, as are Unmap, Remap and Hiccup.
	Exclusive *stats.Summary `json:"own_device,omitempty"`
	// Answer is the time from a request to its answer.
	Answer stats.Summary `json:"answer"`
	// Unmap and Remap are how long the caller waits for all calls of a request.
	Unmap *stats.Summary `json:"unmap,omitempty"`
	Remap *stats.Summary `json:"remap,omitempty"`
	// Hiccup is how long nothing ran on the device, not even the online request,
	// while queues were unmapped.
	Hiccup *stats.Summary `json:"hiccup,omitempty"`

	Calls       float64 `json:"calls"`   // per request, stops and starts
	Updates     float64 `json:"updates"` // of the runlist, or packets to MES, per request
	Utilisation float64 `json:"hqd_utilisation"`
	Mapped      float64 `json:"hqd_mapped"` // as the driver counts slots: with work or without
	Stalled     float64 `json:"stalled"`    // share of the time in which nothing ran
	OfflineKept float64 `json:"offline_kept"`

	VsOneByOne *SpeedUp `json:"vs_one_by_one,omitempty"`
	VsStock    *SpeedUp `json:"vs_stock,omitempty"`
}

// SpeedUp is the mean times of the other way over those of this one.
type SpeedUp struct {
	Exclusive float64 `json:"own_device"`
	Answer    float64 `json:"answer"`
	Unmap     float64 `json:"unmap"`
	Remap     float64 `json:"remap"`
	Hiccup    float64 `json:"hiccup,omitempty"`
}

// compare fills in the speed-ups of the rows with the same number of queues.
func compare(rows []Row) {
	for i := range rows {
		r := &rows[i]
		if r.Way == Batch || r.Way == Stock {
			r.VsOneByOne = r.against(find(rows, OneByOne))
		}
		if r.Way == Batch {
			r.VsStock = r.against(find(rows, Stock))
		}
	}
}

// find returns the first row of a way, or nil.
func find(rows []Row, way Way) *Row {
	if i := slices.IndexFunc(rows, func(r Row) bool { return r.Way == way }); i >= 0 {
		return &rows[i]
	}
	return nil
}

// against returns nil if other is nil.
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
		Exclusive: times(other.Exclusive, r.Exclusive), Answer: times(&other.Answer, &r.Answer),
		Unmap: times(other.Unmap, r.Unmap), Remap: times(other.Remap, r.Remap), Hiccup: times(other.Hiccup, r.Hiccup),
	}
}

// round keeps four digits, so that all machines print the same figures.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }
