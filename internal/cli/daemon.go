package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/config"
	"github.com/spf13/cobra"
)

// DaemonOptions are the daemon's options on the command line.
type DaemonOptions struct {
	Config string  // configuration file; empty: none
	Socket string  // empty: as in the file, or DefaultSocket
	User   bool    // manage this user's processes only
	Sim    string  // scenario file to simulate instead of the devices of this machine; empty: none
	Speed  float64 // of the simulation
	Log    *slog.Logger
	// DefaultSocket is where to listen if neither the command line nor the file says. It
	// is empty if the user has no folder for sockets.
	DefaultSocket string
}

// RunDaemon runs the daemon until ctx is done. Wire sets it.
var RunDaemon func(context.Context, DaemonOptions) error

func newDaemon() *cobra.Command {
	var o DaemonOptions
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run the daemon of this machine, or your own",
		Long: `Run the daemon: one for the machine, as root, or one for your own processes, as any
user. SIGHUP makes it read its configuration again; SIGINT or SIGTERM ends it, with every
change undone.

With --socket, set GIVEWAY_SOCKET to the same path for the other commands.

With --sim the daemon runs on simulated devices and processes, in real time or at
--speed, on any machine: every other command works on them as on a GPU. Without
--config the policy is the scenario's.

Without --config the file is ` + config.Path + `, or with --user giveway/giveway.yaml
in your configuration folder, if it exists.`,
		Example: `  giveway daemon
  giveway daemon --user --socket /tmp/giveway.sock
  giveway daemon --sim scenarios/demo.yaml --socket /tmp/giveway.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if RunDaemon == nil {
				return errors.New("this build has no daemon")
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			if asJSON {
				o.Log = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			}
			o.User = o.User || os.Geteuid() != 0
			o.DefaultSocket = client.SystemSocket
			if o.User {
				o.DefaultSocket = client.UserSocket()
			}
			switch changed := cmd.Flags().Changed; {
			case o.Sim != "":
			case changed("sim"):
				return usageError{errors.New("--sim needs a scenario file, for example scenarios/demo.yaml")}
			case changed("speed"):
				return usageError{errors.New("--speed is for a simulation: name its scenario with --sim")}
			}
			if o.Config == "" && o.Sim == "" {
				o.Config = defaultConfig(o.User)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return RunDaemon(ctx, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Config, "config", "", "configuration file; docs/CONFIG.md describes it")
	flags.StringVar(&o.Socket, "socket", "", "listen on this socket instead of the one in the file")
	flags.BoolVar(&o.User, "user", false, "manage your own processes only (the default for all users but root)")
	flags.StringVar(&o.Sim, "sim", "", "scenario file to simulate instead of using this machine's devices; docs/SCENARIOS.md describes it")
	flags.Float64Var(&o.Speed, "speed", 1, "simulated seconds per second, with --sim")
	flags.BoolVar(&asJSON, "json", false, "log in JSON")
	flags.BoolVarP(&verbose, "verbose", "v", false, "log more")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for unknown flags
	return cmd
}

// defaultConfig returns the file to read if none is named, or nothing if it does not
// exist.
func defaultConfig(user bool) string {
	path := config.Path
	if user {
		dir, err := os.UserConfigDir()
		if err != nil {
			return ""
		}
		path = filepath.Join(dir, "giveway", "giveway.yaml")
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return path
}
