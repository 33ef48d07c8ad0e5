package cli

import (
	"io"
	"os"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/top"
	"github.com/spf13/cobra"
)

func newTop() *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Show live which process has which part of each device",
		Long: `Show live, on the whole terminal, which process has which part of each device, which
waits for which, and why. Press ? for the keys. Classes and weights can be changed and
processes paused and resumed from it, with the rights of the user who runs it.

If the output is no terminal, or TERM is dumb, it is printed once as text. NO_COLOR means no
colours; without a UTF-8 locale only ASCII is used.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, s := client.New(""), screenOf(cmd.OutOrStdout())
			look := top.Look{Colour: s.colour, UTF8: hasUTF8()}
			in, isFile := cmd.InOrStdin().(*os.File)
			if s.terminal && canControl() && isFile && isTerminal(in) {
				return top.Run(cmd.Context(), c, look, in, cmd.OutOrStdout())
			}
			text, err := top.Once(cmd.Context(), c, look, s.width)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
}
