package cli

import (
	"errors"
	"strconv"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/spf13/cobra"
)

func newSet() *cobra.Command {
	var f attrFlags
	cmd := &cobra.Command{
		Use:   "set PID",
		Short: "Change attributes of a running process: its class, weight and more",
		Long: `Change attributes of a process that is already running. The process needs no
preparation. You may change your own processes; root may change all.

What is set here overrides hints, 'giveway run' and the rules of the configuration. An
attribute that the policy in force does not use has no effect until another policy is
chosen: a warning says so, and 'giveway ps' marks it.

` + clearHelp,
		Example: `  giveway set 4711 --class batch
  giveway set 4711 --class default
  giveway set 4711 --class batch --weight 2 --tree`,
	}
	f.register(cmd, attr.BySet)
	return changes(cmd, func() (attr.Values, error) {
		v, err := f.given()
		if err == nil && v.Empty() {
			err = usageError{errors.New("set needs an attribute, for example --class batch")}
		}
		return v, err
	})
}

func newPause() *cobra.Command {
	return changes(&cobra.Command{
		Use:   "pause PID",
		Short: "Keep a process off its devices until it is resumed",
		Long: `Keep a process off its devices until it is resumed. The process itself goes on; its
work for the devices waits.`,
		Example: "  giveway pause 4711",
	}, func() (attr.Values, error) { return attr.Must("paused=true"), nil })
}

func newResume() *cobra.Command {
	return changes(&cobra.Command{
		Use:     "resume PID",
		Short:   "Let a paused process use its devices again",
		Long:    "Let a paused process use its devices again, as its class allows.",
		Example: "  giveway resume 4711",
	}, func() (attr.Values, error) { return attr.Must("paused=false"), nil })
}

// changes makes cmd set the attributes that given returns, of one process.
func changes(cmd *cobra.Command, given func() (attr.Values, error)) *cobra.Command {
	var tree bool
	cmd.Flags().BoolVar(&tree, "tree", false, "its descendants as well, now and later")
	addJSON(cmd, printJSON)
	cmd.Args, cmd.ValidArgsFunction = onePID, completePID
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := given()
		if err != nil {
			return err
		}
		pid, _ := strconv.Atoi(args[0]) // onePID has checked it
		p, err := client.New("").Change(cmd.Context(), pid, api.Change{Values: v, Tree: tree})
		return printChanged(cmd, v, p, err)
	}
	return cmd
}
