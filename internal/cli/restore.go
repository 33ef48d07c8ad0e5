package cli

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/progress"
	"github.com/spf13/cobra"
)

// restoredJSON is what `restore --json` prints if no daemon was asked.
type restoredJSON struct {
	Daemon  bool `json:"daemon"`  // false
	Journal bool `json:"journal"` // there was one
	Groups  int  `json:"groups_let_run"`
	Slices  int  `json:"slices_put_back"` // with --all
}

func newRestore() *cobra.Command {
	var left, all bool
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Put everything back as the vendor has it",
		Long: `Put everything back as the vendor has it: no queue stopped, every time slice as it was
found, every attribute of a process at its default. The policy is native afterwards.
When a policy is chosen again ('giveway policy slo'), the rules of the configuration and
the attributes of 'giveway run' apply again; what 'set' and 'hint' gave stays gone. Your
pools without members are ended, also if no daemon runs; one with members goes on, as a
queue like any other.

Without a daemon, the changes are undone that a daemon left in its journal because it was
killed together with its guardian. The orders in the journal stay: the next daemon goes
on with them. The journal lies beside the daemon's socket: set GIVEWAY_SOCKET if that is
not the usual one. --left does only this, and never asks a daemon.

--all is for when the journal is lost: every queue of the machine that can be reached is
started, with the time slice that the vendor's driver gives it, changed or not.`,
		Example: `  giveway restore
  giveway restore --left`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if left && all {
				return usageError{errors.New("--left and --all exclude each other: choose one")}
			}
			line := progress.Start(cmd.ErrOrStderr(), "putting everything back")
			defer line.Stop()
			cmd.SetErr(line.Writer(cmd.ErrOrStderr()))
			if left && LeftRestore != nil {
				return restoreLeft(cmd, line)
			}
			st, err := client.New("").Restore(cmd.Context())
			if _, failed := pool.EndUnused(); failed != nil {
				printMessage(cmd, "warning", fmt.Sprintf("end pools without members: %v", failed))
			}
			switch none := errors.Is(err, client.ErrNoDaemon); {
			case none && all && LocalRestore != nil:
				return restoreAll(cmd, line)
			case none && LeftRestore != nil:
				return restoreLeft(cmd, line)
			case err != nil:
				return err
			case all:
				return errors.New("a daemon is running and has put everything back: --all is for when none runs")
			}
			line.Stop()
			return show(cmd, st, "Everything is as the vendor has it. The policy is native; choose another with 'giveway policy'.\n")
		},
	}
	addJSON(cmd, "print JSON: the daemon's status, or what was put back if no daemon runs")
	cmd.Flags().BoolVar(&left, "left", false, "only undo what a killed daemon left in its journal")
	cmd.Flags().BoolVar(&all, "all", false, "without a daemon: give every queue the vendor's state, changed or not")
	return cmd
}

// restoreLeft undoes what the journals of daemons that were killed list.
func restoreLeft(cmd *cobra.Command, line *progress.Line) error {
	queues, found, err := LeftRestore(client.Sockets(), newLog(cmd, false))
	line.Stop()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d queues were left changed; they are as they were found\n", queues)
	switch {
	case found && queues == 0:
		text = "No queue was left changed.\n"
	case !found:
		text = "There is no journal, so no daemon has left a change since the machine was started. If the file was removed, use --all.\n"
	}
	return show(cmd, restoredJSON{Journal: found, Groups: queues}, text)
}

// restoreAll restores every queue without a daemon and without a journal.
func restoreAll(cmd *cobra.Command, line *progress.Line) error {
	restored, err := LocalRestore(cmd.Context())
	line.Stop()
	if err != nil {
		return err
	}
	return show(cmd, restoredJSON{Groups: restored.Queues, Slices: restored.Slices},
		fmt.Sprintf("%d queues were found and started; %d of them had a slice other than the vendor's\n", restored.Queues, restored.Slices))
}
