package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
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
such things do so; it changes nothing else. A script says it of itself with --self.`,
		Example: `  giveway hint 4711 --expect 20ms --work 3ms
  giveway hint --self --begin 1; ask the server; giveway hint --self --end 1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if self {
				return cobra.NoArgs(cmd, args)
			}
			return onePID(cmd, args)
		},
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := f.hint(cmd)
			if err != nil {
				return err
			}
			pid := os.Getppid() // the script or shell that called
			if !self {
				pid, _ = strconv.Atoi(args[0]) // onePID has seen it
			}
			p, err := client.New("").Hint(cmd.Context(), pid, h)
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
	cmd.Flags().BoolVar(&self, "self", false, "of the program that calls this command")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
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
	flags.DurationVar(&f.expect, "expect", 0, "from now until the next request")
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
