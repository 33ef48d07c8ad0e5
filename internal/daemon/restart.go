package daemon

import (
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/guardian"
)

// What a daemon takes over from an earlier one: the journal on disk.

// undoLeft undoes the changes of a daemon that was killed together with its guardian. No
// backend is started yet: it would take the changed state for the one to restore.
func (d *Daemon) undoLeft() {
	_, last, err := guardian.UndoLeft(d.cfg.Journal, d.cfg.Backends, d.cfg.Log)
	if damaged := d.cfg.Journal.Damaged(); err == nil {
		err = damaged
	}
	d.lastID.Store(uint64(last)) // the numbers of changes that could not be undone stay theirs
	d.leftErr = err
}

// journalCheck says whether everything that an earlier daemon left was undone.
func (d *Daemon) journalCheck() api.Check {
	if d.leftErr != nil {
		return api.Check{
			Name: "journal", Detail: "changes of an earlier daemon may not be undone: " + d.leftErr.Error(),
			Fix: "stop the daemon and run 'giveway restore --all'",
		}
	}
	return api.Check{Name: "journal", OK: true, Detail: d.cfg.Journal.Path()}
}
