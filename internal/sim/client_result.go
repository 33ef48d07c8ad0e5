package sim

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// addLatency counts the latency of one request. That of a client that saturates the device
// means nothing.
func (c *client) addLatency(d time.Duration) {
	if c.cfg.saturating() {
		return
	}
	c.latencies.Add(d)
	if d <= c.cfg.Attr.SLO {
		c.withinSLO++
	}
}

// countedFrom returns the start of the part of the run that is counted for the client.
func (c *client) countedFrom() sched.Time { return sched.Time(max(c.cfg.Start, c.w.cfg.Warmup)) }

func (c *client) result() ClientResult {
	from := c.countedFrom()
	r := ClientResult{
		Name: c.cfg.Name, Class: c.cfg.Attr.Class, Device: c.w.devices[c.cfg.Device].id,
		Requests: c.requests, OpenLoop: !c.cfg.saturating(),
	}
	if c.q != nil {
		r.Queue, r.DeviceTime = c.q.id, c.pastDeviceTime+c.q.deviceTime
	}
	if counted := c.w.countedEnd.Sub(from); counted > 0 {
		r.Rate = float64(c.requests) / counted.Seconds()
	}
	if r.OpenLoop {
		pending := slices.Clone(c.backlog.all())
		for _, q := range c.waiting.all() {
			pending = append(pending, q.arrival)
		}
		for _, a := range c.answers {
			pending = append(pending, a.arrival)
		}
		if c.busy {
			pending = append(pending, c.arrival)
		}
		for _, at := range pending {
			if at >= from && at < c.w.countedEnd {
				r.Unfinished++
				c.addLatency(c.w.countedEnd.Sub(at))
			}
		}
	}
	r.Latencies, r.Latency = c.latencies, c.latencies.Summary()
	if r.SLO = c.cfg.Attr.SLO; r.SLO > 0 && r.Latency.Count > 0 {
		r.SLOMet = float64(c.withinSLO) / float64(r.Latency.Count)
	}
	return r
}
