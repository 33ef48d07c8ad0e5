package cli

import (
	"errors"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/spf13/cobra"
)

func newSet() *cobra.Command {
	var f attrFlags
	var tree, asJSON bool
	cmd := &cobra.Command{
		Use:   "set PID",
		Short: "Change attributes of a running process: its class, weight and more",
		Long: `Change attributes of a process that is already running. The process needs no
preparation. You may change your own processes; root may change all.

What is set here overrides hints, 'giveway run' and the rules of the configuration. An
attribute that the policy in force does not use has no effect until another policy is
chosen: a warning says so, and 'giveway ps' marks it.`,
		Example: `  giveway set 4711 --class batch
  giveway set 4711 --class batch --weight 2 --tree`,
		Args:              onePID,
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := f.given()
			if err != nil {
				return err
			}
			if v.Empty() {
				return usageError{errors.New("set needs an attribute, for example --class batch")}
			}
			return changeProcess(cmd, args[0], api.Change{Values: v, Tree: tree}, asJSON)
		},
	}
	f.register(cmd, attr.BySet)
	cmd.Flags().BoolVar(&tree, "tree", false, "its descendants as well, now and later")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
