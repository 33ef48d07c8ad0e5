package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/shim"
	"github.com/spf13/cobra"
)

// Exit codes of run if the program could not be run: those of env and nice.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

// ended is the error of run: how its program ended, or why it could not be run.
type ended struct {
	code   int
	signal syscall.Signal // that killed it; zero: none
	err    error          // why it could not be run
}

func (e ended) Error() string {
	switch {
	case e.err != nil:
		return e.err.Error()
	case e.signal != 0:
		return fmt.Sprintf("the program was killed by %v", e.signal)
	}
	return fmt.Sprintf("the program ended with status %d", e.code)
}

// exit ends this process by the signal that ended the program, or returns its exit code.
func (e ended) exit(cmd *cobra.Command) int {
	if e.err != nil {
		printMessage(cmd, "error", e.err.Error())
	}
	if e.signal != 0 {
		dieBy(e.signal)
		return 128 + int(e.signal)
	}
	return e.code
}

func newRun() *cobra.Command {
	var f attrFlags
	var noShim bool
	var label string
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a program, and all that it starts, with attributes such as a class",
		Long: `Run a program, and all that it starts, with attributes such as a class. Its input,
output, signals and exit status are its own: putting 'giveway run' before a command
changes nothing else.

The program is started with the shim, a library (LD_PRELOAD) that tells the daemon when
the program has work for a device, and holds that work back where the device itself
cannot. --no-shim leaves it out.

At least one attribute is needed. Without --class the class is online if --slo is given,
and otherwise what the daemon's rules say, or standard. An attribute that the policy in
force does not use has no effect until another policy is chosen: a warning says so, and
'giveway ps' marks it.

--pool runs a batch program side by side with the other members of its user's pool, under
an MPS server that giveway starts and ends (NVIDIA); a program that cannot join runs
outside. One member that writes to an illegal address ends all: --pool-label makes a pool
of programs that trust each other.

Without a daemon the program runs as well, with a warning; it gets its attributes as soon
as a daemon is started.`,
		Example: `  giveway run --class online -- python serve.py
  giveway run --slo 10ms -- python serve.py
  giveway run --class batch --weight 2 -- python train.py --epochs 3
  giveway run --class batch --pool -- python train.py`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("run needs a command, for example: giveway run --class batch -- python train.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := f.given()
			if err != nil {
				return err
			}
			if v.Empty() {
				return usageError{errors.New("run needs an attribute, for example --class batch")}
			}
			if flag := needsShim(v); noShim && flag != "" {
				return usageError{fmt.Errorf("--%s needs the shim: leave out --no-shim, or --%s", flag, flag)}
			}
			if err := pool.CheckLabel(label); err != nil {
				return usageError{err}
			}
			env, err := tryFilters(os.Environ())
			if err != nil {
				printMessage(cmd, "warning", fmt.Sprintf("%v; %s runs as it would without giveway", err, args[0]))
				return runPlain(args)
			}
			env = pool.WithoutPool(env)
			if !noShim {
				if env, err = preload(env, shim.Library, preloadDirs()); err != nil {
					printMessage(cmd, "warning", fmt.Sprintf("%v; %s runs without the shim", err, args[0]))
				}
			}
			return runAs(cmd, v, label, args, env)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	f.register(cmd, attr.ByRun)
	addJSON(cmd, "print warnings and errors of giveway itself as JSON; the program's output stays its own")
	cmd.Flags().StringVar(&label, "pool-label", pool.DefaultLabel, "with --pool: the pool with this name; members of one pool must trust each other")
	cmd.Flags().BoolVar(&noShim, "no-shim", false, "without the shim: nothing is loaded into the program")
	cmd.Flags().SetInterspersed(false) // flags after the command are the command's
	return cmd
}

// findProgram returns the path of a program.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		code := exitCannotRun
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return "", ended{code: code, err: fmt.Errorf("run %s: %w", name, rootCause(err))}
	}
	return path, nil
}

// runPlain runs a program as it would run without giveway.
func runPlain(args []string) error {
	path, err := findProgram(args[0])
	if err != nil {
		return err
	}
	return runProgram(path, args, os.Environ())
}

// runAs announces a program with its attributes to the daemon, and runs it.
func runAs(cmd *cobra.Command, v attr.Values, label string, args, env []string) error {
	path, err := findProgram(args[0])
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	run := api.Run{Values: v}
	slo, _ := v.Get(attr.SLO)
	mode, _ := v.Get(attr.Pool)
	switch {
	case v.Has(attr.Class):
	case slo > 0:
		run.Values = v.With(attr.Must("class=online"))
	case attr.Mode(mode) == attr.ModeOn:
		run.Values = v.With(attr.Must("class=batch"))
	}
	wanted := poolMode(run.Values)
	started, err := announce(ctx, run)
	switch {
	case err == nil:
		wanted = started.Pool
		warnIgnored(cmd, v, started.Ignored)
		if started.Warning != "" {
			printMessage(cmd, "warning", started.Warning)
		}
		if simulates(cmd.Context()) {
			printMessage(cmd, "warning", fmt.Sprintf("the daemon simulates its devices; %s runs as it would without giveway, and without the shim", args[0]))
			return runProgram(path, args, os.Environ())
		}
	case refused(err):
		wanted = ""
		printMessage(cmd, "warning", fmt.Sprintf("%v; %s runs without these attributes", err, args[0]))
	default:
		printMessage(cmd, "warning", fmt.Sprintf("%v; %s runs all the same, and gets its attributes as soon as a daemon answers", err, args[0]))
	}
	if wanted == "" && cmd.Flags().Changed("pool-label") {
		printMessage(cmd, "warning", fmt.Sprintf("--pool-label has no effect: %s runs outside pools; give --pool as well", args[0]))
	}
	if wanted != "" {
		m, err := joinPool(run.Values, started, label, args, env)
		switch {
		case err == nil:
			defer m.Leave()
			env = m.Env
		case wanted == attr.ModeOn.String():
			printMessage(cmd, "warning", fmt.Sprintf("%v; %s runs outside the pool", err, args[0]))
		}
	}
	return runProgram(path, args, env)
}

// simulates reports whether the daemon has simulated devices, so that it controls no program.
func simulates(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	st, err := client.New("").Status(ctx)
	return err == nil && slices.ContainsFunc(st.Devices, func(d api.Device) bool { return d.Backend == "sim" })
}

// rootCause returns the innermost error, without the paths that the outer ones repeat.
func rootCause(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

// announceTime is how long the start of a program waits for the daemon. announcePace is
// how long to wait before looking again for a daemon that is gone.
const (
	announceTime = 2 * time.Second
	announcePace = time.Second
)

// announce begins a run with the daemon, and begins it again each time that a new daemon
// answers, until ctx is done. It returns the outcome of the first attempt.
func announce(ctx context.Context, r api.Run) (started api.RunStarted, err error) {
	daemon := client.New("")
	run, err := begin(ctx, daemon, r)
	if refused(err) {
		return started, err // it would refuse again
	}
	if run != nil {
		started = run.RunStarted
	}
	go func() {
		for {
			if run != nil {
				select {
				case <-run.Done:
				case <-ctx.Done():
					run.Close()
					return
				}
			}
			select {
			case <-time.After(announcePace):
			case <-ctx.Done():
				return
			}
			run, _ = begin(ctx, daemon, r) // one warning is enough
		}
	}()
	return started, err
}

// refused reports whether a daemon answered and refused. One that is ending leaves the answer to the
// next daemon.
func refused(err error) bool {
	refusal := (*client.Error)(nil)
	return errors.As(err, &refusal) && refusal.Status != http.StatusServiceUnavailable
}

func begin(ctx context.Context, daemon *client.Client, r api.Run) (*client.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	return daemon.Run(ctx, r)
}
