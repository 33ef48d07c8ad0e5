package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/policy"
	"github.com/spf13/cobra"
)

func newPolicy() *cobra.Command {
	var device string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "policy [NAME[:PARAMETER=VALUE,...]]",
		Short: "Show the scheduling policy, or put another in charge",
		Long: `Show the scheduling policy that is in charge, or put another in charge: of all
devices, or of one. 'giveway policy list' lists those there are.`,
		Example: `  giveway policy
  giveway policy wfq
  giveway policy giveway:turn=20ms,slice=200us --device 0`,
		Args: policyArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := showOrSetPolicy(cmd, args, device)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), p)
			}
			return printPolicy(cmd.OutOrStdout(), p)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePolicy(cmd, args, typed)
		},
	}
	cmd.Flags().StringVar(&device, "device", "", "of this device only: its index, or its ID")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newPolicyList())
	return cmd
}

// policyArgs takes a policy that there is. What looks like a slip in the name of
// a command is told as such.
func policyArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args) > 1 {
		return fmt.Errorf("policy takes one policy, such as giveway:turn=20ms; there are %d words", len(args))
	}
	err := scenario.CheckPolicy(args[0])
	if err != nil {
		cmd.SuggestionsMinimumDistance = 2
		if len(cmd.SuggestionsFor(args[0])) > 0 {
			return noSuchCommand(cmd, args)
		}
	}
	return err
}

func showOrSetPolicy(cmd *cobra.Command, args []string, device string) (api.Policy, error) {
	c := client.New("")
	if len(args) == 0 {
		if device != "" {
			return api.Policy{}, usageError{errors.New("--device says where to put a policy in charge, and none is named")}
		}
		return c.Policy(cmd.Context())
	}
	name, params, err := scenario.ParsePolicy(args[0])
	if err != nil {
		return api.Policy{}, usageError{err}
	}
	return c.SetPolicy(cmd.Context(), api.Policy{Name: name, Params: params, Device: device})
}

func printPolicy(w io.Writer, p api.Policy) error {
	where := ""
	if p.Device != "" {
		where = " on " + p.Device
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", policySpec(p), where); err != nil || p.Overruled == "" {
		return err
	}
	_, err := fmt.Fprintf(w, "It is overruled, and the devices run as the vendor has them: %s\n", p.Overruled)
	return err
}

// policySpec is a policy as the command line takes it.
func policySpec(p api.Policy) string {
	s, sep := p.Name, ":"
	for _, key := range slices.Sorted(maps.Keys(p.Params)) {
		s += sep + key + "=" + p.Params[key]
		sep = ","
	}
	return printable(s)
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
	var t format.Table
	for _, p := range infos {
		t.Add(p.Name, p.Doc)
		for _, k := range p.Params {
			t.Add("", fmt.Sprintf("  %s=%s  %s (%s)", k.Name, k.Value, k.Doc, k.Range))
		}
	}
	return t.Write(w, 2)
}
