package daemon

import (
	"maps"
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Policy implements server.Node.
func (d *Daemon) Policy() api.Policy {
	d.mu.Lock()
	p := d.policy
	ids := slices.Sorted(maps.Keys(d.devices))
	d.mu.Unlock()
	d.events.inLoop(func() {
		for _, c := range d.external {
			if why := c.Problem(d.Now()); why != "" {
				p.Overruled = why
			}
		}
		for _, id := range ids {
			if m, _, yes := d.sched.Overruled(id); yes {
				p.Overruled = m.String()
			}
		}
	})
	return p
}

// SetPolicy implements server.Node. Rules and runs apply again to processes that were
// restored.
func (d *Daemon) SetPolicy(p api.Policy) (api.Policy, error) {
	if err := d.putInForce(p); err != nil {
		return api.Policy{}, err
	}
	d.mu.Lock()
	for _, process := range d.processes {
		process.restored = false
	}
	d.resolveAll()
	d.mu.Unlock()
	return d.Policy(), nil
}

// putInForce puts a policy in force on p.Device, or on all devices, and leaves restored
// processes as they are.
func (d *Daemon) putInForce(p api.Policy) error {
	d.mu.Lock()
	known := p.Device == "" || d.devices[sched.DeviceID(p.Device)] != nil
	d.mu.Unlock()
	if !known {
		return server.NotFound("there is no device %q; 'giveway doctor' lists the devices", p.Device)
	}
	if err := d.choosePolicy(p); err != nil {
		return server.BadRequest("%w", err)
	}
	if p.Device == "" {
		d.mu.Lock()
		d.policy = api.Policy{Name: p.Name, Params: p.Params}
		for _, process := range d.processes {
			d.publish(process)
		}
		d.mu.Unlock()
	}
	return nil
}

// choosePolicy puts a policy in charge of p.Device, or of all devices. The connection of
// an external policy is closed once the scheduler uses it no more.
func (d *Daemon) choosePolicy(p api.Policy) error {
	choice, connection, err := d.newPolicy(p)
	if err != nil {
		return err
	}
	d.events.post(sched.Event{Kind: sched.PolicyChosen, Device: sched.DeviceID(p.Device), Choice: choice})
	unused := []*extpolicy.Connection{connection} // unless the loop has ended
	d.events.inLoop(func() {
		unused = unused[:0]
		for device, c := range d.external {
			if p.Device == "" || device == p.Device {
				unused = append(unused, c)
				delete(d.external, device)
			}
		}
		if connection != nil {
			d.external[p.Device] = connection
		}
	})
	for _, c := range unused {
		if c != nil {
			c.Close()
		}
	}
	return nil
}

// newPolicy makes a policy. The connection is nil unless the policy is external.
func (d *Daemon) newPolicy(p api.Policy) (sched.PolicyChoice, *extpolicy.Connection, error) {
	if p.Name != policy.ExternalName {
		choice, err := policy.Choose(p.Name, p.Params)
		return choice, nil, err
	}
	cfg, err := extpolicy.Parse(p.Params)
	if err != nil {
		return sched.PolicyChoice{}, nil, err
	}
	c := extpolicy.Start(cfg, d.events.post, d.cfg.Log)
	return c.Choice(), c, nil
}
