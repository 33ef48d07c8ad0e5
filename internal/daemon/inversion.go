package daemon

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/sched"
)

// noteInterval is how often inversions of a device get notes: a stop that has no effect may be
// an inversion at each request.
const noteInterval = time.Minute

// remedyText says what is done about an inversion.
var remedyText = map[sched.Remedy]string{
	sched.NoRemedy:   "it cannot be stopped now",
	sched.StopAgain:  "its stop had no effect, and it is stopped again, at another level if it has one",
	sched.RetryStops: "its stops failed, and are tried again",
}

// inversions counts the priority inversions of the turn and writes notes.
func (r *recorder) inversions(now sched.Time) {
	for _, v := range r.d.sched.Inversions() {
		r.tally.Inverted(now, v.Device, v.Began, v.More, metrics.Inversion{Victim: r.pidOf(v.Victim), Holder: r.pidOf(v.Holder)})
		last, noted := r.inverted[v.Device]
		switch {
		case v.Began && (!noted || now.Sub(last) >= noteInterval):
			r.inverted[v.Device] = v.Since
			r.rec.Note(v.Device, v.Victim, "inversion", fmt.Sprintf("process %d waits behind process %d, which is to be stopped: %s",
				r.pidOf(v.Victim), r.pidOf(v.Holder), remedyText[v.Remedy]))
		case v.Over && noted && last == v.Since:
			r.rec.Note(v.Device, v.Victim, "inversion", "over after "+format.Duration(now.Sub(v.Since)))
		}
	}
}

// pidOf returns the process of a queue; 0 if the queue is closed.
func (r *recorder) pidOf(id sched.QueueID) int {
	if q := r.queues[id]; q != nil {
		return int(q.pid)
	}
	return 0
}

// inversionCheck reports the priority inversions since the daemon was started, if there was one
// in the last hour.
func (d *Daemon) inversionCheck() api.Check {
	c := api.Check{Name: "priority inversions", OK: true, Detail: "none: queues that are to be stopped do not keep the device from others"}
	if d.cfg.File.Sched.InversionLimit < 0 {
		c.Detail = "not looked for: inversion_limit is 0"
		return c
	}
	count, total, at, last := d.recorder.tally.Inversions()
	if ago := d.Now().Sub(at); count > 0 && ago < lastHour {
		c.OK = false
		c.Detail = fmt.Sprintf("%s since the daemon was started, %s in all; the last one %s ago: process %d waited behind process %d",
			format.Plural(int(count), "inversion"), format.Duration(total), ago.Round(time.Second), last.Victim, last.Holder)
		c.Fix = "giveway log shows what was done; if stops have no effect on this machine, start the process with 'giveway run', so that its launches can be held"
	}
	return c
}
