package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/journal"
)

// checkJournal checks that every queue that is changed is in the journal on disk. A change
// is in the journal before it is made and until it is undone, so a queue that is seen
// changed without being listed was changed meanwhile, or is not listed at all: then it is
// never found listed. A journal that cannot be read in time is not counted: see checkCounts.
func (s *soak) checkJournal() {
	missing := map[int]int{} // by pid: how often
	const tries = 10
	for read, tried := 0, 0; read < tries && tried < 3*tries; tried++ {
		if tried > 0 {
			time.Sleep(3 * time.Millisecond)
		}
		changed := s.changedQueues()
		listed := s.journaled()
		if listed == nil {
			continue
		}
		if read++; read == 1 {
			s.mu.Lock()
			s.figures.journalReads++
			s.figures.journalChanges += len(changed)
			s.mu.Unlock()
		}
		for _, pid := range changed {
			if !listed[pid] {
				missing[pid]++
			}
		}
		if len(missing) == 0 {
			return
		}
	}
	for pid, n := range missing {
		if n == tries {
			s.violation("the queue of process %d is changed and not in the journal", pid)
		}
	}
}

// changedQueues returns the processes whose queues are stopped or have another slice.
func (s *soak) changedQueues() (pids []int) {
	b := fakeBackend{dir: s.path("queues")}
	for _, p := range s.sleepers {
		if b.hardware(p.Process.Pid) != (hardware{}) {
			pids = append(pids, p.Process.Pid)
		}
	}
	return pids
}

// journaled returns the processes that have changes in the journal on disk. It reads a copy,
// because the daemon has locked the journal. It returns nil if there is none.
func (s *soak) journaled() map[int]bool {
	text, err := os.ReadFile(journal.Path(s.path("s")))
	if err != nil {
		return nil
	}
	s.write("journal-copy", string(text))
	if err := os.Chmod(s.path("journal-copy"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	store, err := journal.OpenLocked(s.path("journal-copy"), slog.New(slog.DiscardHandler))
	if err != nil || store.Damaged() != nil {
		return nil // the copy has half a record, or was made while the daemon replaced the file
	}
	defer store.Close()
	all, _, _ := store.Left()
	listed := map[int]bool{}
	for _, l := range all {
		listed[l.Queue.Process.PID] = true
	}
	return listed
}

// soakOrders are what orders had led to when a daemon was killed, as far as the next one must have it.
type soakOrders struct {
	attrs    map[int]map[attr.ID]int64 // by pid: what was set
	policies map[string]api.Policy     // by device
}

// readOrders returns what orders have led to. Simulated processes end with their daemon, and the
// watched page is paused anew by watchLease. A policy stays in force over a restart only with the
// configuration that was in force when it was chosen, so there are no policies while the daemon
// may still be reading another file.
func (s *soak) readOrders() soakOrders {
	o := soakOrders{map[int]map[attr.ID]int64{}, map[string]api.Policy{}}
	for _, p := range s.list() {
		if p.PID == canaryPID() || p.PID > maxPID {
			continue
		}
		set := map[attr.ID]int64{}
		for _, id := range attr.IDs(0) {
			if p.Attrs.Source(id) == attr.FromSet {
				set[id] = p.Attrs.Int(id)
			}
		}
		if len(set) > 0 {
			o.attrs[p.PID] = set
		}
	}
	if time.Since(s.reloaded) > reloadTime {
		o.policies = s.policies()
	}
	return o
}

// reloadTime is how long a daemon may take to read its file again.
const reloadTime = 3 * time.Second

// list returns all processes.
func (s *soak) list() (all []api.Process) {
	_ = s.call("list processes", func(ctx context.Context) (err error) { all, err = s.client.Processes(ctx); return err })
	return all
}

// policies returns the policy that is in force on each device.
func (s *soak) policies() map[string]api.Policy {
	var p api.Policy
	if s.call("policy", func(ctx context.Context) (err error) { p, err = s.client.Policy(ctx); return err }) != nil {
		return nil
	}
	own := map[string]api.Policy{}
	for _, one := range p.Devices {
		own[one.Device] = one
	}
	all := map[string]api.Policy{}
	for _, device := range []string{"", "gpu0", "npu0", "fake0", "opencl"} {
		one, ok := own[device]
		if !ok {
			one = p
		}
		all[device] = api.Policy{Name: one.Name, Params: one.Params}
	}
	return all
}

// checkKept checks that what orders had led to before a daemon was killed is in force when the next
// daemon has found the processes and the devices.
func (s *soak) checkKept(before soakOrders) {
	for pid, set := range before.attrs {
		s.mu.Lock()
		s.figures.keptProcesses++
		s.mu.Unlock()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			p, found := s.find(pid)
			for id, value := range set {
				if found && (p.Attrs.Int(id) != value || p.Attrs.Source(id) != attr.FromSet) {
					s.violation("%v of process %d was set to %s before the daemon was killed, and is %s from %v afterwards",
						id, pid, id.Row().Format(value), id.Row().Format(p.Attrs.Int(id)), p.Attrs.Source(id))
				}
			}
			if found || time.Now().After(end) || !isRunning(pid) {
				break
			}
		}
	}
	s.checkPolicies(before.policies)
}

// checkPolicies checks that the policies are those that were in force before a daemon was killed.
// That of a device comes into force when the device is found, as fake0 and opencl are with their
// first processes.
func (s *soak) checkPolicies(before map[string]api.Policy) {
	s.mu.Lock()
	s.figures.keptPolicies += len(before)
	s.mu.Unlock()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		now := s.policies()
		wrong := ""
		for device, p := range before {
			if s.hasDevice(device) && !samePolicy(p, now[device]) {
				wrong += fmt.Sprintf("; on %q %s is in force, and %s was before", device, now[device].Spec(), p.Spec())
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			s.violation("policies are not kept over the end of the daemon%s", wrong)
			return
		}
	}
}

// hasDevice reports whether the daemon has found a device. All daemons have found "", which stands
// for the others.
func (s *soak) hasDevice(id string) bool {
	var st api.Status
	_ = s.call("status", func(ctx context.Context) (err error) { st, err = s.client.Status(ctx); return err })
	return id == "" || slices.ContainsFunc(st.Devices, func(d api.Device) bool { return d.ID == id })
}

// find returns a process that has a queue.
func (s *soak) find(pid int) (p api.Process, found bool) {
	all := s.list()
	i := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid && len(p.Queues) > 0 })
	if i < 0 {
		return p, false
	}
	return all[i], true
}

// isRunning reports whether a process exists and is not a zombie.
func isRunning(pid int) bool { return usageOf(pid).kB > 0 }
