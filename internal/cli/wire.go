package cli

import (
	"context"

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
	// LocalRestore undoes what a daemon that is gone has left changed.
	LocalRestore func(context.Context) (hal.Restored, error)
)

// Wire connects the command line with the daemon and the machine's devices. Tests do not
// call it: a daemon starts its own program as its guardian, which would be the test
// program.
func Wire() {
	RunDaemon, LocalRestore = daemon.Serve, backends.RestoreAll
	LocalChecks = func() (checks []api.Check) {
		for _, c := range backends.Probe() {
			checks = append(checks, api.Check(c))
		}
		return checks
	}
}
