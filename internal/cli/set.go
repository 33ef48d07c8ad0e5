package cli

import (
	"errors"

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
