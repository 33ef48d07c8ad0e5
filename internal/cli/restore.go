package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/giveway/giveway/client"
	"github.com/spf13/cobra"
)

// LocalRestore undoes what a daemon that is no more has left changed, and says
// what it did. It is set by whoever knows the devices.
var LocalRestore func(context.Context) (string, error)

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
			done := "Everything is as the vendor has it."
			if errors.Is(err, client.ErrNoDaemon) && LocalRestore != nil {
				done, err = LocalRestore(cmd.Context())
			}
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), st)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), done)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: a status as the daemon has it; its pid is 0 without a daemon")
	return cmd
}
