package cli

import (
	"context"
	"log/slog"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/hal"
)

// What the command line does on the machine itself. Wire sets them.
var (
	// RunDaemon runs the daemon until ctx is done.
	RunDaemon func(context.Context, daemon.Options) error
	// LocalChecks checks the machine if no daemon runs.
	LocalChecks func() []api.Check
	// LocalRestore restores every queue of the machine to the vendor's state.
	LocalRestore func(context.Context) (hal.Restored, error)
	// LeftRestore undoes the changes that killed daemons left in their journals. found is
	// false if there is no journal.
	LeftRestore func(sockets []string, log *slog.Logger) (queues int, found bool, err error)
)

// Wire connects the command line with the daemon and the machine's devices. Tests do not
// call it: a daemon starts its own program as its guardian, which would be the test
// program.
func Wire() {
	RunDaemon, LocalRestore, LeftRestore = daemon.Serve, backends.RestoreAll, backends.RestoreLeft
	LocalChecks = func() (checks []api.Check) {
		for _, c := range backends.Probe() {
			checks = append(checks, api.Check(c))
		}
		return checks
	}
}
