package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/sandbox"
	"github.com/giveway/giveway/internal/server"
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
	RunDaemon, LocalRestore, LeftRestore = confinedDaemon, backends.RestoreAll, backends.RestoreLeft
	LocalChecks = func() (checks []api.Check) {
		for _, c := range backends.Probe() {
			checks = append(checks, api.Check(c))
		}
		return append(checks, daemon.DeviceCheck(backends.DeviceFiles()))
	}
}

// confinedDaemon runs the daemon with the descriptors that it may need, and without the
// rights that it does not need.
func confinedDaemon(ctx context.Context, o daemon.Options) error {
	server.RaiseFileLimit()
	guardian.RaiseOOMScore()
	capabilities, calls := sandbox.Daemon()
	logRights(o.Log, capabilities, calls)
	return daemon.Serve(ctx, o)
}

// logRights logs which rights could not be taken from the daemon. The daemon works with them:
// they matter only if a mistake in it is exploited.
func logRights(log *slog.Logger, capabilities, calls error) {
	switch {
	case errors.Is(capabilities, errors.ErrUnsupported):
		log.Info("daemon keeps capabilities that it does not need, because it was built with cgo; it works all the same, and a build with CGO_ENABLED=0, as make does it, drops them")
	case capabilities != nil:
		log.Warn("daemon keeps capabilities that it does not need; it works all the same, but is less protected against its own mistakes", "error", capabilities)
	}
	if calls != nil {
		log.Warn("daemon may make system calls that it does not need; it works all the same, but is less protected against its own mistakes", "error", calls)
	}
}
