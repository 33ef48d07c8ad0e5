package daemon

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// Restore implements server.Node. Afterwards the policy is native and every process has
// its default attributes. Rules and runs apply again once a policy is chosen.
func (d *Daemon) Restore(by server.Caller) error {
	return d.applyOnly(order{Kind: orderRestore, By: by})
}

// restoreAll carries out a restore.
func (d *Daemon) restoreAll() error {
	d.mu.Lock()
	clear(d.trees)
	d.mu.Unlock()
	d.eachProcess(d.allProcesses(), func(p *process) {
		p.layers[attr.FromHint], p.layers[attr.FromSet] = attr.Values{}, attr.Values{}
		p.hasOrders, p.restored, p.expectAt = false, true, time.Time{}
		p.merge()
		d.dropMarks(p)
		d.announce(p)
	})
	if err := d.putInForce(api.Policy{Name: "native"}, false); err != nil {
		return err
	}
	if !d.settle() {
		return server.Conflict("restore: not every queue was put back within %v; try again", undoTimeout)
	}
	return nil
}

// Status implements server.Node.
func (d *Daemon) Status() api.Status { return d.status.get() }

// readStatus collects the status. It calls backends, and so holds no lock.
func (d *Daemon) readStatus() api.Status {
	s := api.Status{Version: d.cfg.Version, PID: os.Getpid(), Uptime: time.Since(d.start), Policy: d.Policy(), Goroutines: runtime.NumGoroutine()}
	checks := slices.Clone(d.cfg.Notes)
	for _, b := range d.cfg.Backends {
		checks = append(checks, b.Checks()...)
		if l, ok := b.(hal.KernelLogger); ok {
			s.KernelLogLines += l.KernelLogLines()
		}
	}
	for _, c := range checks {
		s.Checks = append(s.Checks, api.Check(c))
	}
	d.mu.Lock()
	devices, failed := slices.Collect(maps.Values(d.devices)), maps.Clone(d.failed)
	file, refused := d.confFile, d.confErr
	switching, ledgers := make(map[*device]*api.Switching), make(map[*device]*api.Ledger)
	for _, dev := range devices {
		if switching[dev] = dev.switching.describe(); dev.ledger.Wall() > 0 {
			ledger := api.Ledger(dev.ledger)
			ledgers[dev] = &ledger
		}
	}
	d.mu.Unlock()
	slices.SortFunc(devices, func(a, b *device) int { return strings.Compare(string(a.info.Device.ID), string(b.info.Device.ID)) })
	for _, dev := range devices {
		tracing, ok := dev.Device.(hal.Tracing)
		s.Devices = append(s.Devices, api.Device{
			ID: string(dev.info.Device.ID), Index: dev.info.Index, Model: dev.info.Model, Backend: dev.info.Backend, Trace: ok && tracing.Tracing(), Switching: switching[dev], Ledger: ledgers[dev], Slots: slotsOf(dev.Device),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		s.Checks = append(s.Checks, api.Check{Name: name, Detail: failed[name].Error(), Fix: "see the daemon's log; run the daemon as root"})
	}
	if file != "" {
		s.Checks = append(s.Checks, ConfigCheck(file, refused))
	}
	if c, used := d.namesCheck(); used {
		s.Checks = append(s.Checks, c)
	}
	s.Checks = append(s.Checks, d.deviceCheck(), policyCheck(s.Policy))
	s.Checks = append(s.Checks, d.missingDevices()...)
	s.Checks = append(s.Checks, d.pastChecks()...)
	s.Checks = append(s.Checks, d.inversionCheck())
	s.Checks = append(s.Checks, d.guardian.check())
	if d.cfg.Journal != nil {
		s.Checks = append(s.Checks, d.journalCheck())
	}
	return s
}

// slotsOf returns the hardware slots of a device, if it can reserve some.
func slotsOf(dev hal.Device) *api.Slots {
	r, ok := dev.(hal.Reserving)
	if !ok {
		return nil
	}
	reserved, total := r.ReservedSlots()
	return &api.Slots{Total: total, Reserved: reserved}
}

// ConfigCheck reports whether a configuration file was accepted.
func ConfigCheck(file string, err error) api.Check {
	if err == nil {
		return api.Check{Name: "configuration", OK: true, Detail: file}
	}
	return api.Check{Name: "configuration", Detail: file + " is refused: " + oneLine(err), Fix: "correct the file; until then the daemon keeps the last one that was right, or does not start"}
}

// oneLine returns the text of an error in one printable line.
func oneLine(err error) string {
	return proc.Printable(strings.Join(strings.FieldsFunc(err.Error(), func(c rune) bool { return c == '\n' }), "; "))
}
