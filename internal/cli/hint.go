package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/proc"
	"github.com/spf13/cobra"
)

func newHint() *cobra.Command {
	var f attrFlags
	var begin, end int64
	var self bool
	cmd := &cobra.Command{
		Use:   "hint PID | --self",
		Short: "Tell the daemon what a process is about to do",
		Long: `Tell the daemon what a process is about to do, as the process could itself: when its
next request is due, how long that takes and can wait, that a request begins or ends.
Policies that use such attributes act on them; nothing else changes. 'giveway set'
overrides a hint. ` + clearHelp + `

While requests are marked with --begin and --end, only marked requests of the process
count. Its requests are inferred from its work again when no marked request is open and
the last mark is 10 s old. A marked request that is not ended is closed, and not counted,
when the process has had no work for 10 s, or after a minute (twice the SLO, if that is
longer).

With --self the hint is for the nearest caller that 'giveway ps' lists: the program that
runs this command, directly or by a script. A shell uses no device and is not listed, so a
script must give the PID of the program that the hint is for.`,
		Example: `  giveway hint 4711 --expect 20ms --work 3ms
  giveway hint $server --begin 1; curl localhost:8000; giveway hint $server --end 1`,
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
			h := api.Hint{Values: f.values}
			if cmd.Flags().Changed("begin") {
				h.Begin = &begin
			}
			if cmd.Flags().Changed("end") {
				h.End = &end
			}
			if h.Empty() {
				return usageError{errors.New("hint needs an attribute, for example --expect 20ms, or --begin or --end")}
			}
			if err := h.Check(); err != nil {
				return usageError{err}
			}
			daemon, pid := client.New(""), 0
			var err error
			if !self {
				pid, _ = strconv.Atoi(args[0]) // onePID has checked it
			} else if pid, err = nearestCaller(cmd.Context(), daemon); err != nil {
				return err
			}
			p, err := daemon.Hint(cmd.Context(), pid, h)
			if err != nil {
				return err
			}
			warnIgnored(cmd, h.Values, p.Ignored)
			return show(cmd, p, processText(&p)+marksText(&p)+"\n")
		},
	}
	f.register(cmd, attr.ByHint)
	cmd.Flags().Int64Var(&begin, "begin", 0, "a request begins: a number, 0 or more, to end it by; it may not be open already")
	cmd.Flags().Int64Var(&end, "end", 0, "the request with that number ends")
	cmd.Flags().BoolVar(&self, "self", false, "for the program that calls this command, directly or by a script")
	addJSON(cmd, printJSON)
	return cmd
}

// marksText says how many marked requests of a process are open; empty if none are marked.
func marksText(p *api.Process) string {
	if p.Requests == nil || !p.Requests.Marked {
		return ""
	}
	return fmt.Sprintf("; %s open, only marked requests count now", format.Plural(int(p.Requests.Open), "request"))
}

// nearestCaller returns the first of this process's ancestors that the daemon lists.
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
		return 0, errors.New("find the caller: 'giveway ps' lists none of the programs that started this command; give the PID of a process that it lists")
	}
	return pid, nil
}
