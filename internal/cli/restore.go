package cli

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/client"
	"github.com/spf13/cobra"
)

// restoredJSON is what `restore --json` prints if no daemon runs.
type restoredJSON struct {
	Daemon bool `json:"daemon"` // false
	Groups int  `json:"groups_let_run"`
	Slices int  `json:"slices_put_back"`
}

func newRestore() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Put everything back as the vendor has it",
		Long: `Put everything back as the vendor has it: no queue stopped, every time slice as it was
found, every attribute of a process at its default. The policy is native afterwards.
When a policy is chosen again ('giveway policy slo'), the rules of the configuration and
the attributes of 'giveway run' apply again; what 'set' and 'hint' gave stays gone.

Without a daemon, every queue that can be reached is started, with the time slice that
the vendor's driver gives it: for when a daemon and its guardian were both killed.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := client.New("").Restore(cmd.Context())
			if errors.Is(err, client.ErrNoDaemon) && LocalRestore != nil {
				return restoreHere(cmd)
			}
			if err != nil {
				return err
			}
			return show(cmd, st, "Everything is as the vendor has it. The policy is native; choose another with 'giveway policy'.\n")
		},
	}
	addJSON(cmd, "print JSON: the daemon's status, or what was put back if no daemon runs")
	return cmd
}

// restoreHere restores without a daemon.
func restoreHere(cmd *cobra.Command) error {
	restored, err := LocalRestore(cmd.Context())
	if err != nil {
		return err
	}
	return show(cmd, restoredJSON{Groups: restored.Queues, Slices: restored.Slices},
		fmt.Sprintf("%d queues were found and started; %d of them had a slice other than the vendor's\n", restored.Queues, restored.Slices))
}
