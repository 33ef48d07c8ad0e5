package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/progress"
	"github.com/spf13/cobra"
)

// restoredJSON is what `restore --json` prints.
type restoredJSON struct {
	Daemon  bool `json:"daemon"`  // a daemon has put everything back
	Journal bool `json:"journal"` // without a daemon: there was a journal
	Queues  int  `json:"queues_started"`
	Slices  int  `json:"slices_restored"` // with --all
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
not the usual one. --left does only this; journals of running daemons are left alone.

--all is for when the journal is lost: every queue of the machine that can be reached is
started, with the time slice that the vendor's driver gives it, changed or not. It is
refused while a daemon runs, and nothing is changed then.

With --json it prints one object: daemon is true if a daemon has put everything back;
otherwise queues_started and slices_restored count what was put back, and journal says
whether there was one.`,
		Example: `  giveway restore
  giveway restore --left`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if left && all {
				return usageError{errors.New("--left and --all exclude each other: choose one")}
			}
			free, used := journals(cmd.Context())
			switch {
			case all && len(used) > 0:
				return fmt.Errorf("restore --all: a daemon is running at %s, so nothing was changed. 'giveway restore' lets it put everything back; --all is for when none runs", used[0])
			case left && len(free) == 0:
				return fmt.Errorf("restore --left: a daemon is running at %s and uses the journal, so nothing was left behind. 'giveway restore' lets it put everything back", used[0])
			}
			line := progress.Start(cmd.ErrOrStderr(), "putting everything back")
			defer line.Stop()
			cmd.SetErr(line.Writer(cmd.ErrOrStderr()))
			if left && LeftRestore != nil {
				return restoreLeft(cmd, free, line)
			}
			_, err := client.New("").Restore(cmd.Context())
			if _, failed := pool.EndUnused(); failed != nil {
				printMessage(cmd, "warning", fmt.Sprintf("end pools without members: %v", failed))
			}
			switch none := errors.Is(err, client.ErrNoDaemon); {
			case none && all && LocalRestore != nil:
				return restoreAll(cmd, line)
			case none && LeftRestore != nil:
				return restoreLeft(cmd, free, line)
			case err != nil:
				return err
			}
			line.Stop()
			return show(cmd, restoredJSON{Daemon: true}, "Everything is as the vendor has it. The policy is native; choose another with 'giveway policy'.\n")
		},
	}
	addJSON(cmd, printJSON)
	cmd.Flags().BoolVar(&left, "left", false, "only undo what a killed daemon left in its journal")
	cmd.Flags().BoolVar(&all, "all", false, "without a daemon: give every queue the vendor's state, changed or not")
	return cmd
}

// journals divides the sockets by whether a daemon listens there, which then uses the journal
// beside it.
func journals(ctx context.Context) (free, used []string) {
	for _, socket := range client.Sockets() {
		c, err := client.Dial(ctx, socket)
		if err != nil {
			free = append(free, socket)
			continue
		}
		c.Close()
		used = append(used, socket)
	}
	return free, used
}

// restoreLeft undoes what the journals of daemons that were killed list.
func restoreLeft(cmd *cobra.Command, sockets []string, line *progress.Line) error {
	var earlier []string // damaged journals of an earlier call
	for _, socket := range sockets {
		if path := journal.DamagedPath(journal.Path(socket)); fileExists(path) {
			earlier = append(earlier, path)
		}
	}
	queues, found, err := LeftRestore(sockets, slog.New(slog.DiscardHandler)) // its errors have all that it logs
	line.Stop()
	if err != nil {
		return err
	}
	for _, path := range earlier {
		printMessage(cmd, "warning", fmt.Sprintf("%s is a damaged journal of an earlier daemon: run 'giveway restore --all' if you have not, then remove the file", path))
	}
	text := fmt.Sprintf("%d queues were left changed; they are as they were found\n", queues)
	switch {
	case found && queues == 0:
		text = "No queue was left changed.\n"
	case !found:
		text = "There is no journal, so no daemon has left a change since the machine was started. If the file was removed, use --all.\n"
	}
	return show(cmd, restoredJSON{Journal: found, Queues: queues}, text)
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// restoreAll restores every queue without a daemon and without a journal.
func restoreAll(cmd *cobra.Command, line *progress.Line) error {
	restored, err := LocalRestore(cmd.Context())
	line.Stop()
	if err != nil {
		return err
	}
	return show(cmd, restoredJSON{Queues: restored.Queues, Slices: restored.Slices},
		fmt.Sprintf("%d queues were found and started; %d of them had a slice other than the vendor's\n", restored.Queues, restored.Slices))
}
