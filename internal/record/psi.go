package record

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// Averages as the kernel computes them for /proc/pressure (kernel/sched/psi.c and
// include/linux/sched/loadavg.h): every two seconds, in fixed point with 11 bits.
const (
	psiPeriod = 2 * time.Second
	fixed1    = 1 << 11
)

// psiDecay is exp(-2s/10s), exp(-2s/60s) and exp(-2s/300s) in fixed point: EXP_10s, EXP_60s
// and EXP_300s of the kernel.
var psiDecay = [3]uint64{1677, 1981, 2034}

// psi is one line of pressure.
type psi struct {
	total   time.Duration
	counted time.Duration // of total, what is in the averages
	avg     [3]uint64     // in percent, in fixed point
	updated sched.Time    // when the averages were last updated
	next    sched.Time    // when they are updated next
}

func newPSI(now sched.Time) psi { return psi{updated: now, next: now.Add(psiPeriod)} }

// add adds stalled time up to now. Time of which a part is not added yet must not have
// passed when the averages are updated, so now is the end of the time that is accounted for.
func (p *psi) add(now sched.Time, stalled time.Duration) {
	p.total += stalled
	if now < p.next {
		return
	}
	missed := now.Sub(p.next) / psiPeriod
	p.next = p.next.Add((1 + missed) * psiPeriod)
	period := now.Sub(p.updated.Add(missed * psiPeriod))
	p.updated = now
	// The kernel does not let a sample exceed its period; the rest counts next time.
	sample := min(p.total-p.counted, period)
	p.counted += sample
	percent := uint64(sample*100/max(period, 1)) * fixed1
	for i := range p.avg {
		if missed > 0 {
			p.avg[i] = calcLoad(p.avg[i], power(psiDecay[i], uint64(missed)), 0)
		}
		p.avg[i] = calcLoad(p.avg[i], psiDecay[i], percent)
	}
}

// calcLoad is calc_load of the kernel.
func calcLoad(load, exp, active uint64) uint64 {
	sum := load*exp + active*(fixed1-exp)
	if active >= load {
		sum += fixed1 - 1
	}
	return sum / fixed1
}

// power is fixed_power_int of the kernel: x to the power of n in fixed point.
func power(x, n uint64) uint64 {
	result := uint64(fixed1)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = (result*x + fixed1/2) / fixed1
		}
		x = (x*x + fixed1/2) / fixed1
	}
	return result
}

// stall returns the line as the API has it: with two decimals, cut off as the kernel does.
func (p *psi) stall() api.Stall {
	part := func(avg uint64) float64 {
		return float64(avg/fixed1) + float64(avg%fixed1*100/fixed1)/100
	}
	return api.Stall{Avg10: part(p.avg[0]), Avg60: part(p.avg[1]), Avg300: part(p.avg[2]), Total: p.total}
}
