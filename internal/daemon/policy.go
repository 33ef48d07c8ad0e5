package daemon

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Policy implements server.Node.
func (d *Daemon) Policy() api.Policy { return d.policyInForce.get() }

// readPolicy returns the policies in force and says which are overruled.
func (d *Daemon) readPolicy() api.Policy {
	d.mu.Lock()
	p := d.policy
	ids := slices.Sorted(maps.Keys(d.devices))
	for _, id := range ids {
		if own := d.devices[id].policy; own.Name != "" {
			p.Devices = append(p.Devices, own)
		}
	}
	d.mu.Unlock()
	overruled := func(device, reason string) {
		if i := slices.IndexFunc(p.Devices, func(p api.Policy) bool { return p.Device == device }); i >= 0 {
			p.Devices[i].Overruled = reason
		} else {
			p.Overruled = reason
		}
	}
	d.events.inLoop(func() {
		for device, c := range d.external {
			if problem := c.Problem(d.Now()); problem != "" {
				overruled(device, problem)
			}
		}
		for _, id := range ids {
			if m, _, yes := d.sched.Overruled(id); yes {
				overruled(string(id), m.String())
			}
		}
	})
	return p
}

// SetPolicy implements server.Node. Rules and runs apply again to processes that were
// restored.
func (d *Daemon) SetPolicy(by server.Caller, p api.Policy) (api.Policy, error) {
	if p.Device != "" {
		dev, err := d.findDevice(p.Device)
		if err != nil {
			return api.Policy{}, err
		}
		p.Device = string(dev.info.Device.ID)
	}
	before := d.Policy().Devices
	if err := d.applyOnly(order{Kind: orderPolicy, By: by, Policy: p}); err != nil {
		return api.Policy{}, err
	}
	all := d.Policy()
	if p.Device == "" {
		all.Replaced = before
	}
	if i := slices.IndexFunc(all.Devices, func(own api.Policy) bool { return own.Device == p.Device }); i >= 0 {
		return all.Devices[i], nil
	}
	return all, nil
}

// choosePolicy carries out the choice of a policy.
func (d *Daemon) choosePolicy(chosen api.Policy) error {
	if err := d.putInForce(chosen, true); err != nil {
		return err
	}
	d.endRestore()
	return nil
}

// endRestore makes rules and runs apply again to processes that were restored.
func (d *Daemon) endRestore() {
	d.eachProcess(d.allProcesses(), func(p *process) {
		p.restored = false
		d.announceChange(p)
	})
}

// preparedPolicy is a policy that can be put in force.
type preparedPolicy struct {
	api.Policy
	device     *device // nil: all devices
	choice     sched.PolicyChoice
	connection *extpolicy.Connection // nil: the policy is not external
}

// preparePolicy makes a policy for p.Device, an ID or an index, or for all devices. mustStart is
// that of putInForce.
func (d *Daemon) preparePolicy(p api.Policy, mustStart bool) (made preparedPolicy, err error) {
	if p.Device != "" {
		if made.device, err = d.findDevice(p.Device); err != nil {
			return made, err
		}
		p.Device = string(made.device.info.Device.ID)
	}
	made.Policy = p
	if made.choice, made.connection, err = d.newPolicy(p, mustStart); err != nil {
		return made, server.BadRequest("%w", err)
	}
	if made.device != nil && made.choice.AllDevices {
		return made, server.BadRequest("policy %s schedules all devices together, so one device cannot have it alone", p.Name)
	}
	return made, nil
}

// putInForce puts a policy in force on p.Device, an ID or an index, or on all devices, and
// leaves restored processes as they are. mustStart refuses an external policy whose process
// cannot be reached now.
func (d *Daemon) putInForce(p api.Policy, mustStart bool) error {
	d.choosing.Lock()
	defer d.choosing.Unlock()
	made, err := d.preparePolicy(p, mustStart)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.choose(made.device, made.Policy, made.choice)
	d.mu.Unlock()
	d.usePolicies(made)
	return nil
}

// usePolicies makes backends and connections follow policies that were chosen. d.choosing is held.
func (d *Daemon) usePolicies(all ...preparedPolicy) {
	d.eachProcess(d.allProcesses(), d.publish)
	for _, p := range all {
		d.replaceConnection(p.Device, p.connection)
	}
}

// findDevice returns the device with an ID or an index.
func (d *Daemon) findDevice(name string) (found *device, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.devices[sched.DeviceID(name)]; dev != nil {
		return dev, nil
	}
	for _, dev := range d.devices {
		if strconv.Itoa(dev.info.Index) != name || dev.info.Index < 0 {
			continue
		}
		if found != nil {
			return nil, server.BadRequest("several devices have the index %s: give the ID, as 'giveway doctor' lists it", name)
		}
		found = dev
	}
	if found == nil {
		return nil, server.NotFound("there is no device %q; 'giveway doctor' lists the devices", name)
	}
	return found, nil
}

// choose tells the scheduler of a policy for a device, or for all devices if dev is nil. Those include
// devices that are not found yet and had a policy of their own before a restart. d.mu is held.
func (d *Daemon) choose(dev *device, p api.Policy, choice sched.PolicyChoice) {
	if dev != nil {
		dev.policy = p
	} else {
		d.policy = p
		clear(d.pendingPolicies)
		for _, dev := range d.devices {
			dev.policy = api.Policy{}
		}
	}
	d.events.post(sched.Event{Kind: sched.PolicyChosen, Device: sched.DeviceID(p.Device), Choice: choice})
}

// chooseConfigured gives a device the policy that the configuration names for it, if it
// names one, or the one that was chosen before the daemon restarted. d.mu is held.
func (d *Daemon) chooseConfigured(dev *device) {
	p, ok := d.conf.DevicePolicy(string(dev.info.Device.ID), dev.info.Index)
	if d.takeOverDevice(string(dev.info.Device.ID), p) || !ok {
		return
	}
	choice, err := policy.Choose(p.Name, p.Params)
	if err != nil {
		// The reader of the log may be slow, and d.mu is held.
		go d.cfg.Log.Error("policy of a device could not be applied", "device", dev.info.Device.ID, "error", err)
		return
	}
	d.choose(dev, p, choice)
}

// replaceConnection takes the connection of the policy that was put in force on a device,
// or on all if it is empty; nil: that policy is not external. Connections that the
// scheduler no longer uses are closed.
func (d *Daemon) replaceConnection(device string, connection *extpolicy.Connection) {
	unused := []*extpolicy.Connection{connection} // unless the loop has ended
	d.events.inLoop(func() {
		unused = unused[:0]
		for of, c := range d.external {
			if device == "" || of == device {
				unused = append(unused, c)
				delete(d.external, of)
			}
		}
		if connection != nil {
			d.external[device] = connection
		}
	})
	for _, c := range unused {
		if c != nil {
			c.Close()
		}
	}
}

// newPolicy makes a policy. The connection is nil unless the policy is external; mustStart: then
// its process must run now.
func (d *Daemon) newPolicy(p api.Policy, mustStart bool) (sched.PolicyChoice, *extpolicy.Connection, error) {
	if p.Name != policy.ExternalName {
		choice, err := policy.Choose(p.Name, p.Params)
		return choice, nil, err
	}
	cfg, err := extpolicy.Parse(p.Params)
	if err != nil {
		return sched.PolicyChoice{}, nil, err
	}
	note := func(text string) { d.recorder.rec.Note(sched.DeviceID(p.Device), 0, policy.ExternalName, text) }
	if !mustStart {
		c := extpolicy.Start(cfg, d.events.post, note, d.cfg.Log)
		return c.Choice(), c, nil
	}
	c, err := extpolicy.Try(cfg, d.events.post, note, d.cfg.Log)
	if err != nil {
		return sched.PolicyChoice{}, nil, fmt.Errorf("policy external: the policy process does not run: %w. The policy in force is unchanged", err)
	}
	return c.Choice(), c, nil
}

// policyOf returns the name of the policy that is in force on a device. d.mu is held.
func (d *Daemon) policyOf(dev *device) string { return cmp.Or(dev.policy.Name, d.policy.Name) }

// givesWayBySlices reports whether a policy gives way by slices alone and leaves standard
// processes as they are.
func givesWayBySlices(policy string) bool {
	return policy == "giveway" || policy == "slo" || policy == "native"
}

// policyCheck reports whether the policies in force decide.
func policyCheck(p api.Policy) api.Check {
	c := api.Check{Name: "policy", OK: true, Detail: p.Spec()}
	for _, one := range append([]api.Policy{p}, p.Devices...) {
		if one.Overruled == "" {
			continue
		}
		on := ""
		if one.Device != "" {
			on = " on " + one.Device
		}
		return api.Check{
			Name: "policy", Detail: fmt.Sprintf("%s%s does not decide: %s", one.Name, on, one.Overruled),
			Fix: "see 'giveway log' and the daemon's log; 'giveway policy NAME' chooses another policy",
		}
	}
	return c
}
