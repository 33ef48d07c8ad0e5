package cli

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/sandbox"
	"github.com/giveway/giveway/internal/server"
	"github.com/spf13/cobra"
)

func newDaemon() *cobra.Command {
	var o daemon.Options
	var sim string
	var speed float64
	var verbose bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run the daemon of this machine, or your own",
		Long: `Run the daemon: one for the machine, as root, or one for your own processes, as any
user. SIGHUP makes it read its configuration again; SIGINT or SIGTERM ends it, with every
change undone.

Of several daemons with sockets of their own, one controls NVIDIA's GPUs; the next does when
that one ends.

What set, pause, run and policy ordered is kept in a journal beside the socket: the next
daemon goes on with it. With --takeover a new daemon prepares itself, ends the running
one and takes its place; in between, usually for half a second, programs run as they would
without Giveway. For the daemon of systemd, 'systemctl restart giveway' does the same.

With --socket, set GIVEWAY_SOCKET to the same path for the other commands. The socket must
be in a folder that no other user can change, so not directly in /tmp.

With --sim the daemon runs on simulated devices and processes, in real time or at
--speed, on any machine: every other command works on them as on a GPU. Without
--config the policy is the scenario's. The simulated processes end with the daemon, and the
next one has new ones: what set and pause ordered for the old ones is gone.

Without --config the file is ` + config.Path + `, or with --user giveway/giveway.yaml
in your configuration folder, if it exists.`,
		Example: `  giveway daemon
  giveway daemon --user
  giveway daemon --sim scenarios/demo.yaml --socket ~/.giveway/giveway.sock`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case sim != "":
			case cmd.Flags().Changed("speed"):
				return usageError{errors.New("--speed is for a simulation: name its scenario with --sim")}
			case o.File == "":
				o.File = defaultConfig(o.User || os.Geteuid() != 0)
			}
			if RunDaemon == nil {
				return errors.New("this build has no daemon")
			}
			var flush func()
			o.Log, flush = newLog(cmd, verbose)
			defer flush()
			o.Version, o.Guardian = version().Version, []string{guardian.Self, "guardian"}
			o.User = o.User || os.Geteuid() != 0
			o.Default = client.SystemSocket
			if o.User {
				o.Default = client.UserSocket()
			}
			o.Backends, o.DeviceFiles, o.StartedInPool = backends.New, backends.DeviceFiles(), pool.Started
			if sim != "" {
				if err := simulate(&o, sim, speed); err != nil {
					return err
				}
			}
			// The kernel's link is right also when the program's file was replaced.
			o.FrontEnd = append([]string{"/proc/self/exe", "front-end"}, jsonFlag(cmd)...)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return RunDaemon(ctx, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.File, "config", "", "configuration file; docs/CONFIG.md describes it")
	flags.StringVar(&o.Socket, "socket", "", "listen on this socket instead of the one in the file")
	flags.BoolVar(&o.TakeOver, "takeover", false, "end the daemon that listens on the socket, and go on with its orders")
	flags.BoolVar(&o.User, "user", false, "manage your own processes only (the default for all users but root)")
	flags.StringVar(&sim, "sim", "", "scenario file to simulate instead of using this machine's devices; docs/SCENARIOS.md describes it")
	flags.Float64Var(&speed, "speed", 1, "simulated seconds per second, with --sim")
	addJSON(cmd, "log in JSON")
	flags.BoolVarP(&verbose, "verbose", "v", false, "log more")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for unknown flags
	return cmd
}

// simulate makes the daemon run on simulated devices.
func simulate(o *daemon.Options, scenario string, speed float64) error {
	b, cfg, err := backends.Simulated(scenario, speed)
	o.Config, o.DeviceFiles = cfg, nil
	o.Backends = func(file config.Config, _ int, _ *slog.Logger) ([]hal.Backend, []hal.Check, error) {
		var notes []hal.Check
		if file.NoTrace || file.NoNVIDIA || file.NoAMD {
			notes = []hal.Check{{
				Name: "configuration keys", OK: true, Detail: "trace, nvidia and amd have no effect on simulated devices; the scenario describes them",
			}}
		}
		return []hal.Backend{b}, notes, nil
	}
	return err
}

// newLog returns a log on stderr that no reader can delay, and a function that writes what is left of
// it when the command ends. The command outlives the reader: a write to a pipe without a reader
// would end it by SIGPIPE.
func newLog(cmd *cobra.Command, verbose bool) (log *slog.Logger, flush func()) {
	o := slog.HandlerOptions{Level: slog.LevelInfo}
	if verbose {
		o.Level = slog.LevelDebug
	}
	handler := func(w io.Writer) *slog.Logger {
		if wantsJSON(cmd) {
			return slog.New(slog.NewJSONHandler(w, &o))
		}
		return slog.New(slog.NewTextHandler(w, &o))
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // not Ignore, which programs that we start would inherit
	direct := handler(cmd.ErrOrStderr())
	w := newLogWriter(cmd.ErrOrStderr(), func(lines int) {
		direct.Warn("log was not read in time; lines are left out here", "lines", lines)
	})
	return handler(w), w.close
}

// newGuardian returns the command that the daemon starts as its guardian.
func newGuardian() *cobra.Command {
	return &cobra.Command{
		Use: "guardian", Hidden: true, Args: noArgs,
		Short: "Undo what a daemon has changed when it exits (started by the daemon)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, flush := newLog(cmd, false)
			defer flush()
			return guardian.Run(3, backends.Adopt, log)
		},
	}
}

// newFrontEnd returns the command that the daemon starts as its front end.
func newFrontEnd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "front-end", Hidden: true, Args: noArgs,
		Short: "Parse requests for a daemon (started by the daemon)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, flush := newLog(cmd, false)
			defer flush()
			if err := sandbox.FrontEnd(); err != nil {
				log.Warn("front end has more rights than it needs", "error", err)
			}
			return server.RunFrontEnd(log)
		},
	}
	addJSON(cmd, "log in JSON")
	return cmd
}

// jsonFlag returns the flag with which a command that this one starts logs in the same
// format.
func jsonFlag(cmd *cobra.Command) []string {
	if wantsJSON(cmd) {
		return []string{"--json"}
	}
	return nil
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
