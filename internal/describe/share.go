package describe

import (
	"time"

	"github.com/giveway/giveway/api"
)

// Sample is the list of processes at one time.
type Sample struct {
	At        time.Time
	Processes []api.Process
}

// Key names what a process uses of a device.
type Key struct {
	PID    int
	Device string // empty for a client of an MPS server: its device time is part of the server's
}

// Shares returns the part of the time between two samples for which a process had a device.
// A queue that only one of them has is left out, and so is everything if no time has passed.
func Shares(before, after Sample) map[Key]float64 {
	shares := map[Key]float64{}
	elapsed := after.At.Sub(before.At)
	if elapsed <= 0 {
		return shares
	}
	type queue struct {
		pid int
		id  uint64
	}
	queues, members := map[queue]time.Duration{}, map[int]time.Duration{}
	for i := range before.Processes {
		p := &before.Processes[i]
		for _, q := range p.Queues {
			queues[queue{p.PID, q.ID}] = q.Served
		}
		if p.Member != nil {
			members[p.PID] = p.Member.Served
		}
	}
	total := map[string]float64{}
	for i := range after.Processes {
		p := &after.Processes[i]
		for _, q := range p.Queues {
			if was, ok := queues[queue{p.PID, q.ID}]; ok && q.Served >= was {
				share := float64(q.Served-was) / float64(elapsed)
				shares[Key{p.PID, q.Device}] += share
				total[q.Device] += share
			}
		}
		if was, ok := members[p.PID]; ok && len(p.Queues) == 0 && p.Member != nil && p.Member.Served >= was {
			shares[Key{p.PID, ""}] = min(float64(p.Member.Served-was)/float64(elapsed), 1)
		}
	}
	// The daemon adds up device time every few milliseconds, so that a device may seem to
	// have been held for longer than the time that passed.
	for k, share := range shares {
		if all := total[k.Device]; k.Device != "" && all > 1 {
			shares[k] = share / all
		}
	}
	return shares
}

// Share returns the sum of a process's shares of all devices; false: it is not known.
func Share(shares map[Key]float64, p *api.Process) (sum float64, known bool) {
	seen := map[string]bool{}
	for _, q := range p.Queues {
		if share, ok := shares[Key{p.PID, q.Device}]; ok && !seen[q.Device] {
			sum, known, seen[q.Device] = sum+share, true, true
		}
	}
	if len(p.Queues) == 0 && p.Member != nil {
		sum, known = shares[Key{p.PID, ""}]
	}
	return sum, known
}
