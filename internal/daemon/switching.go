package daemon

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// deviceLoss is a report of the time that a device has lost in context switches.
type deviceLoss struct {
	device   hal.Device
	lost     time.Duration
	switches uint64
}

// switchMeter is what a device loses in context switches: so far, and per second.
type switchMeter struct {
	lost     time.Duration // so far
	switches uint64
	since    sched.Time // start of the current period; zero: nothing was reported yet
	atSince  deviceLoss // what was reported then
	share    float64    // of the last period
	rate     float64
}

// meterPeriod is the time over which a switchMeter averages.
const meterPeriod = time.Second

// update takes in a report. Counts that decrease begin a new period.
func (m *switchMeter) update(now sched.Time, lost time.Duration, switches uint64) {
	m.lost, m.switches = lost, switches
	elapsed := now.Sub(m.since)
	switch {
	case m.since == 0, lost < m.atSince.lost, switches < m.atSince.switches:
	case elapsed < meterPeriod:
		return
	default:
		m.share = min((lost-m.atSince.lost).Seconds()/elapsed.Seconds(), 1)
		m.rate = float64(switches-m.atSince.switches) / elapsed.Seconds()
	}
	m.since, m.atSince = max(now, 1), deviceLoss{lost: lost, switches: switches}
}

// describe returns what the API shows; nil: nothing was reported.
func (m *switchMeter) describe() *api.Switching {
	if m.since == 0 {
		return nil
	}
	return &api.Switching{Lost: m.lost, Switches: m.switches, Share: m.share, Rate: m.rate}
}
