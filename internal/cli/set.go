package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/giveway/giveway/api"
	"github.com/spf13/cobra"
)

func newSet() *cobra.Command {
	var f attrFlags
	var tree, asJSON bool
	cmd := &cobra.Command{
		Use:   "set PID",
		Short: "Change the class of a program that runs, its weight and more",
		Long: `Change the class of a program that is already running, its weight and more.
Nothing need have been prepared in the program. You may change your own; root may
change all.`,
		Example: `  giveway set 4711 --class batch
  giveway set 4711 --class batch --weight 2 --tree`,
		Args:              onePID,
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.change(cmd)
			if err != nil {
				return err
			}
			if c.Empty() {
				return usageError{errors.New("set what? For example --class batch")}
			}
			c.Tree = tree
			return changeProcess(cmd, args[0], c, asJSON)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&tree, "tree", false, "its children as well, now and to come")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// warnOf says that a prediction which was asked for does nothing to a process as it is. It
// is not refused: the class may change, and the shim may be on its way to a new daemon.
func warnOf(stderr io.Writer, c api.Change, p api.Process, asJSON bool) {
	if c.Predict == nil || !*c.Predict {
		return
	}
	if p.Shim == nil {
		say(stderr, "warning", fmt.Sprintf("%d has no shim, and --predict does nothing without; 'giveway run' starts a program with it", p.PID), asJSON)
	}
	if p.Class != "online" {
		say(stderr, "warning", fmt.Sprintf("%d is %s, and --predict does nothing until it is online", p.PID, p.Class), asJSON)
	}
}
