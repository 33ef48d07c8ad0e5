package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/proc"
	"github.com/spf13/cobra"
)

func newHint() *cobra.Command {
	var f hintFlags
	var self, asJSON bool
	cmd := &cobra.Command{
		Use:   "hint PID | --self",
		Short: "Say what a program is about to do",
		Long: `Say what a program is about to do, as it could itself: when its next request is due,
how long that takes and can wait, that a request begins or ends. Policies that go by
such things do so; it changes nothing else.

With --self it is said of the nearest caller that 'giveway ps' lists: the program that runs
this command, itself or by a script. A shell uses no GPU and is not listed, so a script names
the program that it speaks for.`,
		Example: `  giveway hint 4711 --expect 20ms --work 3ms
  giveway hint $server --begin 1; ask the server; giveway hint $server --end 1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if self && len(args) > 0 {
				return errors.New("either a PID or --self, not both")
			}
			if self {
				return nil
			}
			return onePID(cmd, args)
		},
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := f.hint(cmd)
			if err != nil {
				return err
			}
			daemon, pid := client.New(""), 0
			if !self {
				pid, _ = strconv.Atoi(args[0]) // onePID has seen it
			} else if pid, err = nearestCaller(cmd.Context(), daemon); err != nil {
				return err
			}
			p, err := daemon.Hint(cmd.Context(), pid, h)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), p)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), describe(p))
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&self, "self", false, "of the program that calls this command, directly or by a script")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// nearestCaller is the first of our parents that the daemon lists.
func nearestCaller(ctx context.Context, daemon *client.Client) (pid int, err error) {
	all, err := daemon.Processes(ctx)
	if err != nil {
		return 0, err
	}
	proc.Ancestors(os.Getppid(), func(parent int) bool {
		if slices.ContainsFunc(all, func(p api.Process) bool { return p.PID == parent }) {
			pid = parent
		}
		return pid != 0
	})
	if pid == 0 {
		return 0, errors.New("'giveway ps' lists none of the programs that led to this command: give the PID of one that it lists")
	}
	return pid, nil
}

// hintFlags are what may be said.
type hintFlags struct {
	priority                       int32
	deadline, laxity, work, expect time.Duration
	begin, end                     int64
	idempotent                     bool
}

func (f *hintFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int32Var(&f.priority, "priority", 0, "higher runs first")
	flags.DurationVar(&f.deadline, "deadline", 0, "from ready to done, such as 20ms; 0 is none")
	flags.DurationVar(&f.laxity, "laxity", 0, "how long its work can wait and still be in time; 0 is unknown")
	flags.DurationVar(&f.work, "work", 0, "device time that a request needs; 0 is unknown")
	flags.DurationVar(&f.expect, "expect", 0, "from now until the next request; 0 is unknown")
	flags.BoolVar(&f.idempotent, "idempotent", false, "what it launches from now on may be run twice; =false: it may not")
	flags.Int64Var(&f.begin, "begin", 0, "a request begins: a number to end it by")
	flags.Int64Var(&f.end, "end", 0, "the request of that number ends")
}

// hint is what was said: the flags that are there.
func (f *hintFlags) hint(cmd *cobra.Command) (api.Hint, error) {
	var h api.Hint
	for name, say := range map[string]func(){
		"priority":   func() { h.Priority = &f.priority },
		"deadline":   func() { h.Deadline = &f.deadline },
		"laxity":     func() { h.Laxity = &f.laxity },
		"work":       func() { h.Work = &f.work },
		"expect":     func() { h.Expect = &f.expect },
		"idempotent": func() { h.Idempotent = &f.idempotent },
		"begin":      func() { h.Begin = &f.begin },
		"end":        func() { h.End = &f.end },
	} {
		if cmd.Flags().Changed(name) {
			say()
		}
	}
	if h.Empty() {
		return h, usageError{errors.New("hint what? For example --expect 20ms")}
	}
	if err := h.Check(); err != nil {
		return h, usageError{err}
	}
	return h, nil
}
