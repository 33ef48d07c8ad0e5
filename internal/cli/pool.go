package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/sched"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newPool() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "List your pools, or end those without members",
		Long: `List your pools. A pool is an MPS server (NVIDIA) in which batch programs of one user run
side by side: 'giveway run --class batch --pool -- COMMAND' starts a program in it.

  LABEL    as given by --pool-label
  GPUS     the GPUs that members may use, as in CUDA_VISIBLE_DEVICES
  SERVER   the pid of the MPS server, which 'giveway ps' shows as one queue; - before the
           first member uses a GPU
  MEMBERS  pids of the members as the MPS server lists them
  FOLDER   of the pool. FOLDER/pipe is for CUDA_MPS_PIPE_DIRECTORY: mount it into a
           container to let it join. FOLDER/log has the logs of MPS and of the keeper

A pool starts with its first member and ends 30 s after its last one. Programs of another
pid namespace, such as a container, have pools of their own, which are not listed.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, failed := pool.List()
			if len(all) == 0 && failed != nil {
				return failed
			}
			return errors.Join(show(cmd, append([]pool.Status{}, all...), poolsText(all)), failed) // in JSON none are []
		},
	}
	addJSON(cmd, printJSON)
	end := &cobra.Command{
		Use:   "end",
		Short: "End your pools that have no members now",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ended, failed := pool.EndUnused()
			return errors.Join(show(cmd, map[string]int{"ended": ended}, fmt.Sprintf("%d pools were ended\n", ended)), failed)
		},
	}
	addJSON(end, printJSON)
	cmd.AddCommand(end)
	return cmd
}

// poolsText returns the table of pools.
func poolsText(all []pool.Status) string {
	if len(all) == 0 {
		return "You have no pool. Start one with 'giveway run --class batch --pool -- COMMAND'.\n"
	}
	var t format.Table
	t.Add().Cells = []string{"LABEL", "GPUS", "SERVER", "MEMBERS", "FOLDER"}
	for _, p := range all {
		gpus := p.Devices
		if gpus == "" {
			gpus = "all"
		}
		t.Add().Cells = []string{p.Label, format.Printable(gpus), numbersText(p.Servers), numbersText(p.Clients), format.Printable(p.Folder)}
	}
	var b strings.Builder
	_ = t.Write(&b, 5) // a Builder takes everything
	for _, p := range all {
		if len(p.Faulted) > 0 {
			b.WriteString(faultText(pool.Fault{Label: p.Label, Clients: p.Clients}))
		}
	}
	if pids := withoutRules(all); len(pids) > 0 {
		fmt.Fprintf(&b, "No daemon answered when 'giveway run' started as process %s: the thread percentage is by --weight, not by a rule.\n", numbersText(pids))
	}
	return b.String()
}

// faultText returns a line that says that a pool takes no member after a fault.
func faultText(f pool.Fault) string {
	return fmt.Sprintf("A member of pool %s has had a fault: MPS takes no new one until its clients have exited: %s.\n", f.Label, numbersText(f.Clients))
}

// withoutRules returns the pids of members to whose weight no rule was applied.
func withoutRules(all []pool.Status) (pids []int) {
	for _, p := range all {
		for _, m := range p.Members {
			if !m.RulesApplied {
				pids = append(pids, m.PID)
			}
		}
	}
	return pids
}

func numbersText(all []int) string {
	if len(all) == 0 {
		return "-"
	}
	var words []string
	for _, n := range all {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ",")
}

const (
	keeperCommand = "pool-keeper"
	keeperLock    = 3 // a descriptor
)

// newPoolKeeper returns the command of the process that ends a pool without members. It
// inherits a lock, which it holds until it exits.
func newPoolKeeper() *cobra.Command {
	return &cobra.Command{
		Use: keeperCommand + " FOLDER", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "End a pool when it has had no members for a while",
		RunE: func(cmd *cobra.Command, args []string) error {
			unix.CloseOnExec(keeperLock) // the programs that it starts do not hold the lock
			log, flush := newLog(cmd, false)
			defer flush()
			return pool.Keep(args[0], func() { unix.Close(keeperLock) }, log)
		},
	}
}

// poolMode returns which pool mode attributes ask for if no daemon says so; empty: none.
func poolMode(v attr.Values) string {
	mode, _ := v.Get(attr.Pool)
	if class, _ := v.Get(attr.Class); sched.Class(class) != sched.Batch || attr.Mode(mode) == attr.ModeOff {
		return ""
	}
	return attr.Mode(mode).String()
}

// joinPool makes this process a member of a pool. started is the daemon's answer to the run. If
// its weight is zero no daemon answered, and the attributes of the run count.
func joinPool(v attr.Values, started api.RunStarted, label string, args, env []string) (*pool.Member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := pool.Request{Env: env, Label: label, Weight: started.Weight, Priority: started.Priority, RulesApplied: started.Weight > 0, Command: strings.Join(args, " "), Keeper: []string{self, keeperCommand}}
	if !r.RulesApplied {
		r.Weight, _ = v.Get(attr.Weight)
		r.Priority, _ = v.Get(attr.Priority)
	}
	return pool.Join(r)
}
