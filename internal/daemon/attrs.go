package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/server"
)

// announce tells the backends and the scheduler of a process's attributes. d.mu is held.
func (d *Daemon) announce(p *process) {
	d.pauseMember(p)
	for _, q := range p.pool.queues {
		d.updatePoolWeight(q)
	}
	d.publish(p)
	d.events.post(p.appendAttrs(nil)...)
}

// announceChange merges the attributes of a process and announces them if they have
// changed. d.mu is held.
func (d *Daemon) announceChange(p *process) {
	was := p.attrs
	if p.merge(); p.attrs != was {
		d.announce(p)
	}
}

// give sets attributes of a process for its owner. d.mu is held.
func (d *Daemon) give(p *process, v attr.Values) {
	p.give(attr.FromSet, v)
	p.hasOrders = !p.layers[attr.FromSet].Empty() // not if v has cleared all
	d.announce(p)
}

// refusal says why a process cannot have attributes that its owner wants to set. Daemon.mu
// is held.
func (p *process) refusal(v attr.Values) error {
	if err := p.refusalInPool(v); err != nil {
		return err
	}
	if paused, _ := v.Get(attr.Paused); paused != 0 && !p.stoppable() {
		return server.Conflict("process %d cannot be paused: its queue has a time slice but cannot be stopped", p.info.PID)
	}
	return nil
}

// niceInterval is how often the CPU scheduling parameters of processes are read.
const niceInterval = time.Second

// followNice reads the CPU scheduling parameters of the processes again and again while
// a policy is in force that uses them, because renice changes them.
func (d *Daemon) followNice(ctx context.Context) {
	every := time.NewTicker(niceInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		d.mu.Lock()
		s := attrContext{policies: d.policyNames()}
		d.mu.Unlock()
		if len(s.users(attr.Nice.Row())) > 0 {
			d.readNice()
		}
	}
}

// readNice reads the CPU scheduling parameters of every process. It does so without d.mu,
// for which the loop would wait.
func (d *Daemon) readNice() {
	changed := make(map[*process]attr.Values)
	for _, p := range d.allProcesses() {
		if now, err := d.procs.Stat(p.info.PID); err == nil && now.Start == p.info.Start {
			changed[p] = cpuAttrs(now.Nice, now.RealTime)
		}
	}
	d.eachProcess(slices.Collect(maps.Keys(changed)), func(p *process) {
		p.layers[attr.FromProcess] = changed[p]
		d.announceChange(p)
	})
}

// cpuAttrs returns the CPU scheduling parameters of a process as attributes.
func cpuAttrs(nice int8, realTime uint8) (v attr.Values) {
	if nice != 0 {
		v.Set(attr.Nice, int64(nice))
	}
	if realTime != 0 {
		v.Set(attr.RealTime, int64(realTime))
	}
	return v
}
