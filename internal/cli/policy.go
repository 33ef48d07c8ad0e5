package cli

import (
	"fmt"
	"io"

	"github.com/giveway/giveway/policy"
	"github.com/spf13/cobra"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Look at the scheduling policies",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyList())
	return cmd
}

func newPolicyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the policies and their parameters",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), policy.List())
			}
			return printPolicies(cmd.OutOrStdout(), policy.List())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printPolicies(w io.Writer, infos []policy.Info) error {
	var t table
	for _, p := range infos {
		t.add(p.Name, p.Doc)
		for _, k := range p.Params {
			t.add("", fmt.Sprintf("  %s=%s  %s (%s)", k.Name, k.Value, k.Doc, k.Range))
		}
	}
	return t.write(w, 2)
}
