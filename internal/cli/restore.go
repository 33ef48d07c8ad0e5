package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/hal"
	"github.com/spf13/cobra"
)

// LocalRestore undoes what a daemon that is no more has left changed, and says
// how many compute groups it let run and how many of those had a slice to put
// back. It is set by whoever knows the devices.
var LocalRestore func(context.Context) (hal.Restored, error)

// restoredJSON is what `restore --json` prints where no daemon runs, and so
// nobody has a status.
type restoredJSON struct {
	Daemon bool `json:"daemon"` // false
	Groups int  `json:"groups_let_run"`
	Slices int  `json:"slices_put_back"`
}

func newRestore() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Put everything back as the vendor has it",
		Long: `Put everything back as the vendor has it: nothing stopped, every time slice as it was
found. A daemon that runs does so, and then leaves everything alone until a policy is
chosen again. Without one, every program that can be reached is let run, with the time
slice that CUDA gives it: for when a daemon and its guardian were both killed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := client.New("").Restore(cmd.Context())
			if errors.Is(err, client.ErrNoDaemon) && LocalRestore != nil {
				return restoreHere(cmd, asJSON)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), st)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "Everything is as the vendor has it.")
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: the daemon's status, or without a daemon what was put back")
	return cmd
}

// restoreHere is the same without a daemon.
func restoreHere(cmd *cobra.Command, asJSON bool) error {
	restored, err := LocalRestore(cmd.Context())
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), restoredJSON{Groups: restored.Queues, Slices: restored.Slices})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d compute groups looked at; all are let run, and %d had a slice that is nobody's default\n", restored.Queues, restored.Slices)
	return err
}
