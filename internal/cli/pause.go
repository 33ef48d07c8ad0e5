package cli

import (
	"github.com/giveway/giveway/api"
	"github.com/spf13/cobra"
)

func newPause() *cobra.Command {
	return newPauseOrResume("pause", "Keep a program off the GPU until it is resumed", true,
		`Keep a program off the GPU until it is resumed. The program itself goes on; what it
asks of the GPU waits.`)
}

func newResume() *cobra.Command {
	return newPauseOrResume("resume", "Let a paused program have the GPU again", false,
		`Let a paused program have the GPU again, as its class has it.`)
}

func newPauseOrResume(name, short string, paused bool, long string) *cobra.Command {
	var tree, asJSON bool
	cmd := &cobra.Command{
		Use:               name + " PID",
		Short:             short,
		Long:              long,
		Example:           "  giveway " + name + " 4711",
		Args:              onePID,
		ValidArgsFunction: completePID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeProcess(cmd, args[0], api.Change{Paused: &paused, Tree: tree}, asJSON)
		},
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "its children as well, now and to come")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
