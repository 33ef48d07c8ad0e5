package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManPage(t *testing.T) {
	cmd := &cobra.Command{
		Use: "demo [flags] FILE", Short: "Do a thing", Run: func(*cobra.Command, []string) {},
		Long: "First.\n.dots and a back\\slash.\n\nSecond:\n\n  kept   as is\n\nThird.",
	}
	cmd.Flags().StringP("level", "l", "low", "how `much`")
	got := manPage(cmd)
	for _, want := range []string{
		".SH NAME\ndemo \\- Do a thing\n",
		".SH SYNOPSIS\n.B demo [flags] FILE\n",
		"First.\n\\&.dots and a back\\eslash.\n.PP\nSecond:\n.PP\n.nf\n  kept   as is\n.PP\n.fi\nThird.\n",
		".TP\n.B \\-l, \\-\\-level \\fImuch\\fR\nhow much (default low)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain\n%s", got, want)
		}
	}
}
