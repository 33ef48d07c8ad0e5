package cli

import (
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/spf13/cobra"
)

func newPause() *cobra.Command {
	return newPauseOrResume("pause", "Keep a process off its devices until it is resumed", attr.Must("paused=true"),
		`Keep a process off its devices until it is resumed. The process itself goes on; its
work for the devices waits.`)
}

func newResume() *cobra.Command {
	return newPauseOrResume("resume", "Let a paused process use its devices again", attr.Must("paused=false"),
		`Let a paused process use its devices again, as its class allows.`)
}

func newPauseOrResume(name, short string, v attr.Values, long string) *cobra.Command {
	var tree, asJSON bool
	cmd := &cobra.Command{
		Use:               name + " PID",
		Short:             short,
		Long:              long,
		Example:           "  giveway " + name + " 4711",
		Args:              onePID,
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeProcess(cmd, args[0], api.Change{Values: v, Tree: tree}, asJSON)
		},
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "its descendants as well, now and later")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
