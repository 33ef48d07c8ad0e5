package bench

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// LateResult is how the requests of the online clients entered the device during a phase,
// as their shims count.
type LateResult struct {
	Requests uint64  `json:"requests"` // that entered late
	Early    uint64  `json:"early"`    // of those, released by a wait of the program before the planned moment
	LeftUs   float64 `json:"left_us"`  // mean time for which a late request left the device to others
}

func (l *LateResult) line() string {
	return fmt.Sprintf("%d requests entered late, by %.0f us, %d of them before the planned moment", l.Requests, l.LeftUs, l.Early)
}

// add adds the requests of another measurement.
func (l *LateResult) add(other LateResult) {
	left := l.LeftUs*float64(l.Requests) + other.LeftUs*float64(other.Requests)
	l.Requests += other.Requests
	l.Early += other.Early
	l.LeftUs = left / float64(l.Requests)
}

// counters are what the daemon has counted so far.
type counters struct {
	late      lateCounters  // of the online clients
	traced    bool          // lost is known
	lost      time.Duration // in context switches
	collected time.Time
}

// lateCounters are those of a shim in the output of giveway ps --json.
type lateCounters struct {
	Requests uint64        `json:"late_requests"`
	Early    uint64        `json:"late_early"`
	LeftFor  time.Duration `json:"late_ns"`
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
			Shim *lateCounters
		}
	}
	_ = json.Unmarshal(h.Ask("ps", "--json"), &printed)
	for _, p := range printed.Processes {
		if p.Shim != nil && slices.ContainsFunc(online, func(cl *client) bool { return cl.pid == p.PID }) {
			c.late.Requests += p.Shim.Requests
			c.late.Early += p.Shim.Early
			c.late.LeftFor += p.Shim.LeftFor
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
		p.Late = &LateResult{Requests: n, Early: c.late.Early - before.late.Early, LeftUs: us(c.late.LeftFor-before.late.LeftFor) / float64(n)}
	}
	if took := c.collected.Sub(before.collected); c.traced && before.traced && took > 0 {
		lost := float64(c.lost-before.lost) / float64(took)
		p.Lost = &lost
	}
}
