package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/shim"
	"github.com/spf13/cobra"
)

// Exit codes of run where there is no program to have one, as of env and nice.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

// ended is how a program that was run came to its end.
type ended struct {
	code   int
	signal syscall.Signal // that killed it; zero: none did
	err    error          // why there was nothing to run
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

// exit ends this process as the program ended, or returns the status to end with.
func (e ended) exit(stderr io.Writer, asJSON bool) int {
	if e.err != nil {
		say(stderr, "error", e.err.Error(), asJSON)
	}
	if e.signal != 0 {
		dieBy(e.signal)
		return 128 + int(e.signal)
	}
	return e.code
}

func newRun() *cobra.Command {
	var f attrFlags
	var asJSON, noShim bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a program, and all it starts, as of a class",
		Long: `Run a program, and all that it starts, as of a class. Its input, output, signals and
exit status are its own: putting 'giveway run' before a command changes nothing else.

It is started with a library of ours (LD_PRELOAD) that tells the daemon when it has work
for a device, and holds that back where the device itself cannot. --no-shim leaves it out.

Say at least one thing of it, such as its class. Without --class it is online if --slo is
given, and else as the daemon's rules say, or standard.

Without a daemon the program runs all the same, with a warning; it gets what is
asked for here as soon as there is one.`,
		Example: `  giveway run --class online -- python serve.py
  giveway run --slo 10ms -- python serve.py
  giveway run --class batch --weight 2 -- python train.py --epochs 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("run what? For example: giveway run --class batch -- python train.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.change(cmd)
			if err != nil {
				return err
			}
			if c.Empty() {
				return usageError{errors.New("run it as what? For example --class batch")}
			}
			if online := "online"; c.Class == nil && f.slo > 0 {
				c.Class = &online
			}
			if flag := needsShim(c); noShim && flag != "" {
				return usageError{fmt.Errorf("--%s needs the shim: leave out --no-shim, or --%s", flag, flag)}
			}
			c.Tree = true
			env := os.Environ()
			if !noShim {
				if env, err = preload(env, shim.Library, preloadDirs()); err != nil {
					say(cmd.ErrOrStderr(), "warning", fmt.Sprintf("%v; %s runs without the shim", err, args[0]), asJSON)
				}
			}
			return runAs(cmd.Context(), c, args, env, cmd.ErrOrStderr(), asJSON)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print warnings, and why the program cannot be run, as JSON; its output is its own")
	cmd.Flags().BoolVar(&noShim, "no-shim", false, "without our library: nothing is put into the program")
	cmd.Flags().SetInterspersed(false) // what follows the command is the command's
	return cmd
}

// runAs runs a program while the daemon has our promise that we are it.
func runAs(ctx context.Context, c api.Change, args, env []string, stderr io.Writer, asJSON bool) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		code := exitCannotRun
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return ended{code: code, err: fmt.Errorf("run %s: %w", args[0], errors.Unwrap(err))}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := announce(ctx, c); refused(err) {
		say(stderr, "warning", fmt.Sprintf("%v; %s runs as it would without giveway", err, args[0]), asJSON)
	} else if err != nil {
		say(stderr, "warning", fmt.Sprintf("%v; %s runs all the same, and gets what is asked for as soon as a daemon answers", err, args[0]), asJSON)
	}
	return runProgram(path, args, env)
}

// needsShim names a flag of c that does nothing without the shim, if there is one.
func needsShim(c api.Change) string {
	switch {
	case c.Bound != nil:
		return "bound"
	case c.Batch != nil:
		return "bound-batch"
	case c.Predict != nil && *c.Predict:
		return "predict"
	}
	return ""
}

// say says a warning or an error of our own.
func say(stderr io.Writer, what, text string, asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(stderr).Encode(map[string]string{what: text}) // nobody to tell
		return
	}
	fmt.Fprintf(stderr, "giveway: %s\n", text)
}

// How long the daemon may keep a program waiting, and how long until it is
// looked for again once it is gone.
const (
	announceTime = 2 * time.Second
	announcePace = time.Second
)

// announce tells the daemon of this process, and again each time that a daemon
// that had been gone is back, until ctx is done. It returns how the first time
// went.
func announce(ctx context.Context, c api.Change) error {
	daemon := client.New("")
	held, err := begin(ctx, daemon, c)
	if refused(err) {
		return err // it will not think better of it
	}
	go func() {
		for {
			if held != nil {
				select {
				case <-held.Done:
				case <-ctx.Done():
					held.Close()
					return
				}
			}
			select {
			case <-time.After(announcePace):
			case <-ctx.Done():
				return
			}
			held, _ = begin(ctx, daemon, c) // told once is enough
		}
	}()
	return err
}

// refused reports whether a daemon has answered, and said no.
func refused(err error) bool { return errors.As(err, new(*client.Error)) }

func begin(ctx context.Context, daemon *client.Client, c api.Change) (*client.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	return daemon.Run(ctx, c)
}
