package daemon

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/server"
)

// maxContainers is the most containers that can be registered: several times what one
// machine runs.
const maxContainers = 4096

// containers are the registered containers by id. A value never changes, so that it can be
// read without a lock and compared by address.
type containers map[string]*api.Container

// of returns the container that a process is in, or nil; path is as proc.Process.Containers
// has it. The outermost counts: a process can make cgroups inside its own and give them the
// id of another container.
func (c containers) of(path string) *api.Container {
	for id := range strings.SplitSeq(path, "/") {
		if found := c[id]; found != nil {
			return found
		}
	}
	return nil
}

// with returns the containers with one replaced, or removed if it is nil.
func (c containers) with(id string, next *api.Container) containers {
	changed := maps.Clone(c)
	if changed == nil {
		changed = containers{}
	}
	if changed[id] = next; next == nil {
		delete(changed, id)
	}
	return changed
}

// Containers implements server.Registry.
func (d *Daemon) Containers() []api.Container {
	all := []api.Container{}
	for _, c := range *d.containers.Load() {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b api.Container) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Container implements server.Registry.
func (d *Daemon) Container(id string) (api.Container, bool) {
	if c := (*d.containers.Load())[id]; c != nil {
		return *c, true
	}
	return api.Container{}, false
}

// PodOf implements server.Registry. Where an agent registers containers, one that is not
// registered is a pod of its own: the agent is late, or the daemon refused the container. Its
// processes may have the uid of other pods' processes, and must not have the rights of that
// user meanwhile.
func (d *Daemon) PodOf(path string) (pod string, registered bool) {
	return d.podOf(path), d.containers.Load().of(path) != nil
}

// podOf returns what identifies the pod of a process: see PodOf.
func (d *Daemon) podOf(path string) string {
	if c := d.containers.Load().of(path); c != nil {
		return c.Owner()
	}
	if d.cfg.File.Agent == "" {
		return ""
	}
	return outside(path, d.inside)
}

// outside returns the outermost container of path that own is not in, or "". Both are as
// proc.Process.Containers has them. The daemon's machine may be a container itself, which all
// paths have in common.
func outside(path, own string) string {
	for {
		id, rest, _ := strings.Cut(path, "/")
		same, ownRest, _ := strings.Cut(own, "/")
		if id == "" || id != same {
			return id
		}
		path, own = rest, ownRest
	}
}

// Register implements server.Registry. When it returns, the attributes are in force for the
// processes of the container, also for those that are found later.
func (d *Daemon) Register(c api.Container) error {
	if err := c.Check(); err != nil {
		return server.BadRequest("%w", err)
	}
	d.orders.RLock()
	defer d.orders.RUnlock()
	if d.ending() {
		return errEnding()
	}
	d.registering.Lock()
	defer d.registering.Unlock()
	all := *d.containers.Load()
	if _, known := all[c.ID]; !known && len(all) >= maxContainers {
		return server.Conflict("%d containers are registered, and no more are allowed; remove those that are gone", maxContainers)
	}
	return d.changeContainer(c.ID, &c)
}

// Unregister implements server.Registry.
func (d *Daemon) Unregister(id string) error {
	d.orders.RLock()
	defer d.orders.RUnlock()
	if d.ending() {
		return errEnding()
	}
	d.registering.Lock()
	defer d.registering.Unlock()
	return d.changeContainer(id, nil)
}

// changeContainer registers or removes a container, gives its processes their attributes, and
// writes the change to the journal, as keepOrder does. d.registering is held.
func (d *Daemon) changeContainer(id string, next *api.Container) error {
	d.mu.Lock()
	changed := d.containers.Load().with(id, next)
	d.containers.Store(&changed) // for new processes
	conf := d.conf
	d.mu.Unlock()
	var inside []*process
	for _, p := range d.allProcesses() {
		if strings.Contains(p.info.Containers, id) {
			inside = append(inside, p)
		}
	}
	d.updateAdminSettings(inside, conf, changed)
	return d.keepContainer(id, next)
}

// updateAdminSettings gives processes what a configuration and containers have for them. Patterns
// are compared without d.mu: a rule may match slowly.
func (d *Daemon) updateAdminSettings(some []*process, conf *config.Config, all containers) {
	settings := make(map[*process]adminSettings)
	for _, p := range some {
		settings[p] = d.adminSettingsOf(&p.info, conf, all)
	}
	d.eachProcess(some, func(p *process) {
		if a := settings[p]; d.conf == conf {
			p.layers[attr.FromRule], p.limits, p.container = a.rule, a.limits, a.container
			d.announceChange(p)
		}
	})
}

// ceilingOf returns what the processes of a container may ask for at most: what the container
// was given, and otherwise the default. The container's pod may ask for less, by run, set and
// hints; it cannot give itself what an administrator did not.
func ceilingOf(rule attr.Values) (ceiling attr.Values) {
	for _, id := range attr.Limitable() {
		value, given := rule.Get(id)
		if !given {
			value = id.Row().Default
		}
		ceiling.Set(id, value)
	}
	return ceiling
}

// keepContainer writes a container to the journal, or removes it there.
func (d *Daemon) keepContainer(id string, c *api.Container) error {
	if d.cfg.Journal == nil || d.journalOrder == nil {
		return nil
	}
	d.keeping.Lock()
	defer d.keeping.Unlock()
	switch {
	case d.keptClosed:
		return errEnding()
	case c == nil:
		d.logKept(d.cfg.Journal.Delete(keptContainers + id))
	default:
		d.logKept(d.cfg.Journal.Put(keptContainers+id, *c))
	}
	return nil
}

// takeOverContainers registers the containers that an earlier daemon knew. The agent removes
// those that are gone. Without an agent no container could ever be removed, so none is registered.
func (d *Daemon) takeOverContainers() {
	keys := d.cfg.Journal.Keys(keptContainers)
	if d.cfg.File.Agent == "" {
		d.logKept(d.cfg.Journal.Delete(keys...))
		return
	}
	all := containers{}
	for _, key := range keys {
		var c api.Container
		if d.cfg.Journal.Get(key, &c) && c.Check() == nil && len(all) < maxContainers {
			all[c.ID] = &c
		}
	}
	d.containers.Store(&all)
}
