package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/top"
	"github.com/spf13/cobra"
)

// explainJSON is what `explain --json` prints: the facts, and the explanation in sentences.
type explainJSON struct {
	Process  api.Process        `json:"process"`
	Policy   string             `json:"policy"` // in force where the device has none of its own
	Delays   []api.Delay        `json:"delays"` // for what it waited
	Orders   []api.Entry        `json:"orders"` // that changed it, the last first
	Sections []describe.Section `json:"sections"`
}

func newExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain PID",
		Short: "Say why a process runs or waits, and what would change it",
		Long: `Say in sentences why a process runs or waits on its devices, since when, for which
processes it waited, its attributes, the orders for it, and what would change it.

Root and the process's own user see all of it. Of other users' processes the command, the
requests and the orders are hidden.

With --json it prints the process as 'giveway ps --json' does, what it waited for, the
orders that changed it, and the sentences by section.`,
		Example:           "  giveway explain 4711",
		Args:              onePID,
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, _ := strconv.Atoi(args[0]) // onePID has checked it
			facts, err := gatherFacts(cmd.Context(), client.New(""), pid)
			if err != nil {
				return err
			}
			sections := describe.Explain(facts)
			width := cmp.Or(screenOf(cmd.OutOrStdout()).width, 80)
			return show(cmd, explainJSON{*facts.Process, facts.Policy.Spec(), facts.OwnDelays(), facts.OwnOrders(), sections},
				describe.Write(sections, min(max(width, 20), 100)))
		},
	}
	addJSON(cmd, printJSON)
	return cmd
}

// gatherFacts asks the daemon for what it knows of a process. An older daemon knows neither
// delays nor orders.
func gatherFacts(ctx context.Context, c *client.Client, pid int) (f describe.Facts, err error) {
	before, err := c.Processes(ctx)
	if err != nil {
		return f, err
	}
	at := time.Now()
	find := func(all []api.Process) int {
		return slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid })
	}
	if find(before) < 0 {
		return f, fmt.Errorf("explain process %d: it uses no device that the daemon knows; 'giveway ps' lists those that use a device", pid)
	}
	time.Sleep(psMoment)
	if f.All, err = c.Processes(ctx); err != nil {
		return f, err
	}
	f.Now, f.Period = time.Now(), psMoment
	i := find(f.All)
	if i < 0 {
		return f, fmt.Errorf("explain process %d: it has just ended", pid)
	}
	f.Process = &f.All[i]
	f.Shares = describe.Shares(describe.Sample{At: at, Processes: before}, describe.Sample{At: f.Now, Processes: f.All})
	st, err := c.Status(ctx)
	if err != nil {
		return f, err
	}
	f.Devices, f.Policy = st.Devices, st.Policy
	f.UID = os.Geteuid()
	if f.Delays, err = top.Delays(ctx, c); err != nil {
		return f, err
	}
	f.Orders, err = top.Orders(ctx, c)
	return f, err
}
