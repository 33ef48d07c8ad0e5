package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// LateResult is how the requests of the online clients entered the device during a phase,
// as their shims count.
type LateResult struct {
	Requests uint64  `json:"requests"` // that entered late
	Early    uint64  `json:"early"`    // of those, released by a wait of the program before the planned moment
	LeftUs   float64 `json:"left_us"`  // mean time for which a late request left the device to others

	Compared *LateCompared `json:"compared,omitempty"` // nil: the shim has compared none of them
}

// LateCompared is the latency of requests that entered late over that of the one before each,
// which entered at once. Unlike phases, the two of a pair are not seconds apart.
type LateCompared struct {
	Pairs uint64       `json:"pairs"`
	Ratio float64      `json:"ratio"` // median; 0: too few pairs
	Low   float64      `json:"low"`   // its 95 % confidence bounds
	High  float64      `json:"high"`
	Bins  []ratioCount `json:"counts"`
}

// AheadResult says how often the GPU was taken ahead of requests that were expected.
type AheadResult struct {
	Taken   uint64  `json:"taken"`
	Came    uint64  `json:"came"`     // the request came while the GPU was held for it
	SavedUs float64 `json:"saved_us"` // mean time that such a request did not wait, as the shim estimates
}

func (a *AheadResult) line() string {
	return fmt.Sprintf("the GPU was taken ahead of %d requests, which saved each %.0f us, and %d times in vain", a.Came, a.SavedUs, a.Taken-a.Came)
}

// add adds the requests of another measurement.
func (a *AheadResult) add(other AheadResult) {
	saved := a.SavedUs*float64(a.Came) + other.SavedUs*float64(other.Came)
	a.Taken += other.Taken
	a.Came += other.Came
	a.SavedUs = saved / float64(a.Came)
}

// ratioCount is api.RatioCount.
type ratioCount struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Pairs uint64  `json:"pairs"`
}

// compared returns the median of the ratios, or nil if there are none.
func compared(counts []ratioCount) *LateCompared {
	if len(counts) == 0 {
		return nil
	}
	bins := make([]stats.Bin, len(counts))
	for i, c := range counts {
		bins[i] = stats.Bin{From: c.From, To: c.To, Count: c.Pairs}
	}
	m := stats.MedianOf(bins)
	return &LateCompared{Pairs: m.Count, Ratio: m.Median, Low: m.Low, High: m.High, Bins: counts}
}

// addCounts returns the sum of two lists, in order of the ratio. sign -1 subtracts the second.
func addCounts(a, b []ratioCount, sign int) []ratioCount {
	sum := slices.Clone(a)
	for _, c := range b {
		c.Pairs *= uint64(sign) // wraps, and so does the sum
		i, found := slices.BinarySearchFunc(sum, c.From, func(s ratioCount, from float64) int { return cmp.Compare(s.From, from) })
		if found {
			sum[i].Pairs += c.Pairs
		} else {
			sum = slices.Insert(sum, i, c)
		}
	}
	return slices.DeleteFunc(sum, func(c ratioCount) bool { return int64(c.Pairs) <= 0 })
}

func (l *LateResult) line() string {
	line := fmt.Sprintf("%d requests entered late, by %.0f us, %d of them before the planned moment", l.Requests, l.LeftUs, l.Early)
	if c := l.Compared; c != nil && c.Ratio > 0 {
		line += fmt.Sprintf("; in %d pairs they took %.3f times as long as the one before, which entered at once (%.3f to %.3f)", c.Pairs, c.Ratio, c.Low, c.High)
	}
	return line
}

// add adds the requests of another measurement.
func (l *LateResult) add(other LateResult) {
	left := l.LeftUs*float64(l.Requests) + other.LeftUs*float64(other.Requests)
	l.Requests += other.Requests
	l.Early += other.Early
	l.LeftUs = left / float64(l.Requests)
	l.Compared = compared(addCounts(l.counts(), other.counts(), 1))
}

func (l *LateResult) counts() []ratioCount {
	if l.Compared == nil {
		return nil
	}
	return l.Compared.Bins
}

// counters are what the daemon has counted so far.
type counters struct {
	late      lateCounters  // of the online clients
	ahead     aheadCounters // likewise
	traced    bool          // lost is known
	lost      time.Duration // in context switches
	collected time.Time
}

// lateCounters are those of a shim in the output of giveway ps --json.
type lateCounters struct {
	Requests uint64        `json:"late_requests"`
	Early    uint64        `json:"late_early"`
	LeftFor  time.Duration `json:"late_ns"`
	Compared struct {
		Counts []ratioCount `json:"counts"`
	} `json:"late_compared"`
}

// aheadCounters are more of them: how often the GPU was taken ahead of a request that was expected.
type aheadCounters struct {
	Taken uint64        `json:"parked"`
	Came  uint64        `json:"hits"`
	Saved time.Duration `json:"saved_ns"`
}

// counters asks the daemon. What it does not tell is zero.
func (h *harness) counters(online []*client) (c counters) {
	c.collected = time.Now()
	if h.Ask == nil {
		return c
	}
	var printed struct {
		Processes []struct {
			PID  int
			Shim *struct {
				lateCounters
				aheadCounters
			}
		}
	}
	_ = json.Unmarshal(h.Ask("ps", "--json"), &printed)
	for _, p := range printed.Processes {
		if p.Shim != nil && slices.ContainsFunc(online, func(cl *client) bool { return cl.pid == p.PID }) {
			c.late.Requests += p.Shim.Requests
			c.late.Early += p.Shim.Early
			c.late.LeftFor += p.Shim.LeftFor
			c.late.Compared.Counts = addCounts(c.late.Compared.Counts, p.Shim.Compared.Counts, 1)
			c.ahead.Taken += p.Shim.Taken
			c.ahead.Came += p.Shim.Came
			c.ahead.Saved += p.Shim.Saved
		}
	}
	var status struct {
		Devices []struct {
			ID        string
			Switching *struct {
				Lost time.Duration `json:"lost_ns"`
			}
		}
	}
	_ = json.Unmarshal(h.Ask("doctor", "--json"), &status)
	for _, d := range status.Devices {
		if d.Switching != nil && (d.ID == h.uuid || len(status.Devices) == 1) {
			c.traced, c.lost = true, d.Switching.Lost
		}
	}
	return c
}

// addTo adds what has been counted since before to a phase.
func (c counters) addTo(p *Phase, before counters) {
	if n := c.late.Requests - before.late.Requests; c.late.Requests > before.late.Requests {
		p.Late = &LateResult{
			Requests: n, Early: c.late.Early - before.late.Early, LeftUs: us(c.late.LeftFor-before.late.LeftFor) / float64(n),
			Compared: compared(addCounts(c.late.Compared.Counts, before.late.Compared.Counts, -1)),
		}
	}
	if n := c.ahead.Came - before.ahead.Came; c.ahead.Came > before.ahead.Came {
		p.Ahead = &AheadResult{Taken: c.ahead.Taken - before.ahead.Taken, Came: n, SavedUs: us(c.ahead.Saved-before.ahead.Saved) / float64(n)}
	}
	if took := c.collected.Sub(before.collected); c.traced && before.traced && took > 0 {
		lost := float64(c.lost-before.lost) / float64(took)
		p.Lost = &lost
	}
}
