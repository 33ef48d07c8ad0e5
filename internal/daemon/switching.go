package daemon

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// switchMeter is what a device loses in context switches: so far, and per second.
type switchMeter struct {
	lost     time.Duration // so far
	switches uint64
	since    sched.Time // start of the current period; zero: nothing was reported yet
	atSince  hal.Ledger // then
	share    float64    // of the last period
	rate     float64
}

// meterPeriod is the time over which a switchMeter averages.
const meterPeriod = time.Second

// update takes in what the device has done up to now.
func (m *switchMeter) update(now sched.Time, l *hal.Ledger) {
	m.lost, m.switches = l.Switching, l.Switches
	elapsed := now.Sub(m.since)
	switch {
	case m.since == 0:
	case elapsed < meterPeriod:
		return
	default:
		m.share = min((l.Switching-m.atSince.Switching).Seconds()/elapsed.Seconds(), 1)
		m.rate = float64(l.Switches-m.atSince.Switches) / elapsed.Seconds()
	}
	m.since, m.atSince = max(now, 1), *l
}

// describe returns what the API shows; nil: nothing was reported.
func (m *switchMeter) describe() *api.Switching {
	if m.since == 0 {
		return nil
	}
	return &api.Switching{Lost: m.lost, Switches: m.switches, Share: m.share, Rate: m.rate}
}
