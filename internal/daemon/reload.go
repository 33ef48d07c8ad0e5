package daemon

import (
	"maps"
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
)

// applyConfig puts the rules, the limits and the policies of a configuration in force. A policy that
// was chosen by an order stays in force if the configuration has the same one as before, as after a
// restart.
func (d *Daemon) applyConfig(c config.Config) error {
	return d.applyOnly(order{Kind: orderConfig, By: ourselves, Config: &c})
}

// useConfig carries out applyConfig. The configuration and its policies change together, with d.mu
// held once: the journal compares what is in force with the configuration, and would take half a
// change for an order.
func (d *Daemon) useConfig(c *config.Config) error {
	d.choosing.Lock()
	defer d.choosing.Unlock()
	d.registering.Lock()
	defer d.registering.Unlock()
	changed, err := d.prepareConfig(c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.conf = c // for new processes
	pending := maps.Clone(d.pendingPolicies)
	for _, p := range changed {
		d.choose(p.device, p.Policy, p.choice)
	}
	maps.Copy(d.pendingPolicies, pending) // takeOverDevice compares them with the configuration
	d.mu.Unlock()
	d.updateAdminSettings(d.allProcesses(), c, *d.containers.Load())
	if len(changed) > 0 {
		d.usePolicies(changed...)
		d.endRestore()
	}
	return nil
}

// prepareConfig makes the policies that a configuration changes, in the order in which they are to
// be chosen. d.choosing is held.
func (d *Daemon) prepareConfig(c *config.Config) (changed []preparedPolicy, err error) {
	for _, p := range d.changedPolicies(c) {
		made, err := d.preparePolicy(p, true)
		if changed = append(changed, made); err != nil {
			for _, p := range changed {
				if p.connection != nil {
					p.connection.Close()
				}
			}
			return nil, err
		}
	}
	return changed, nil
}

// changedPolicies returns the policies to choose because a configuration differs from the one in
// force. A choice for all devices comes first, and those of single devices are repeated after it.
func (d *Daemon) changedPolicies(c *config.Config) []api.Policy {
	d.mu.Lock()
	defer d.mu.Unlock()
	common, everywhere := d.policy, !samePolicy(d.conf.Policy, c.Policy)
	if everywhere {
		common = c.Policy
	}
	byFile := everywhere
	var kept, replaced []api.Policy // policies of single devices
	for _, id := range slices.Sorted(maps.Keys(d.devices)) {
		dev := d.devices[id]
		was, _ := d.conf.DevicePolicy(string(id), dev.info.Index)
		now, _ := c.DevicePolicy(string(id), dev.info.Index)
		switch {
		case samePolicy(was, now) && dev.policy.Name == "" && byFile:
			kept = append(kept, now) // an order for all devices had ended it
		case samePolicy(was, now):
			kept = append(kept, dev.policy)
		case now.Name != "":
			replaced = append(replaced, now)
		case dev.policy.Name != "": // it has that of all devices again
			everywhere = true
		}
	}
	if everywhere {
		kept = slices.DeleteFunc(kept, func(p api.Policy) bool { return p.Name == "" })
		replaced = append(append([]api.Policy{common}, kept...), replaced...)
	}
	return replaced
}
