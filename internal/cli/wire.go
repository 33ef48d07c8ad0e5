package cli

import (
	"context"
	"log/slog"
	"os"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/spf13/cobra"
)

// Wire connects the command line with the daemon. Tests do not call it: a daemon starts
// its own program as its guardian, which would be the test program.
func Wire() {
	RunDaemon, LocalRestore = runDaemon, backends.RestoreAll
	LocalChecks = func() (checks []api.Check) {
		for _, c := range backends.Probe() {
			checks = append(checks, api.Check(c))
		}
		return checks
	}
}

// runDaemon runs the daemon, with this program as its guardian.
func runDaemon(ctx context.Context, o DaemonOptions) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	options := daemon.Options{
		Version: version().Version, File: o.Config, Socket: o.Socket, Default: o.DefaultSocket, User: o.User,
		Guardian: []string{self, "guardian"}, Backends: backends.New, Log: o.Log,
	}
	if o.Sim != "" {
		b, cfg, err := backends.Simulated(o.Sim, o.Speed)
		if err != nil {
			return err
		}
		options.Config = cfg
		options.Backends = func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) {
			return []hal.Backend{b}, nil, nil
		}
	}
	return daemon.Serve(ctx, options)
}

// newGuardian returns the command that the daemon starts as its guardian.
func newGuardian() *cobra.Command {
	return &cobra.Command{
		Use: "guardian", Hidden: true, Args: cobra.NoArgs,
		Short: "Undo what a daemon has changed when it exits (started by the daemon)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return guardian.Keep(3, backends.Adopt, log)
		},
	}
}
