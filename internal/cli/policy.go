package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
	"github.com/spf13/cobra"
)

func newPolicy() *cobra.Command {
	var device string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "policy [NAME[:PARAMETER=VALUE,...]]",
		Short: "Show the scheduling policy, or choose another",
		Long: `Show the scheduling policy in force, or choose another: for all devices, or for one. A
policy for all devices also replaces those of single devices.
'giveway policy list' lists the policies, the attributes that each uses and its
parameters. To choose the policy in force again changes its parameters; it keeps its
state, and parameters that are not given have their defaults.`,
		Example: `  giveway policy
  giveway policy wfq
  giveway policy giveway:turn=20ms,slice=200us --device 0`,
		Args: policyArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := showOrSetPolicy(cmd, args, device)
			return writePolicy(cmd.OutOrStdout(), p, err, asJSON)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePolicy(cmd, args, typed)
		},
	}
	cmd.Flags().StringVar(&device, "device", "", deviceHelp)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newPolicyList(), newPolicyExternal())
	return cmd
}

const deviceHelp = "of this device only: its index, or its ID"

func newPolicyExternal() *cobra.Command {
	var socket, command, fallback, device string
	var deadline time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "external {--socket PATH | --exec COMMAND}",
		Short: "Choose a policy that another process computes",
		Long: `Choose a policy that another process computes. The process listens on a unix socket
(--socket), or the daemon starts it with its own rights (--exec). It reads one question a
line and answers each with one line; docs/OWN-POLICY.md describes them, and
examples/policy/priority.py is a complete policy.

It is refused if nothing listens on the socket, or if the command ends at once. While the
process is late, wrong or gone, the fallback policy decides, and 'giveway policy', doctor
and log say why. The daemon connects again, or starts the command again, after 1 s; the
pause doubles with each failure, up to 30 s. To end it, choose another policy.`,
		Example: `  giveway policy external --exec 'python3 /opt/policies/priority.py'
  giveway policy external --socket /run/policy.sock --deadline 20ms --fallback giveway`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			params := map[string]string{"deadline": deadline.String(), "fallback": fallback}
			if socket != "" {
				path, err := filepath.Abs(socket)
				if err != nil {
					return err
				}
				params["socket"] = path
			}
			if command != "" {
				params["exec"] = command
			}
			if _, err := extpolicy.Parse(params); err != nil {
				return usageError{err}
			}
			p, err := client.New("").SetPolicy(cmd.Context(), api.Policy{Name: policy.ExternalName, Params: params, Device: device})
			return writePolicy(cmd.OutOrStdout(), p, err, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&socket, "socket", "", "unix socket that the policy process listens on")
	flags.StringVar(&command, "exec", "", "command that the daemon starts, as the daemon's user")
	flags.DurationVar(&deadline, "deadline", extpolicy.DefaultDeadline, "how long an answer may take before the fallback policy decides")
	flags.StringVar(&fallback, "fallback", policy.Names()[0], "policy that decides while the process is late, wrong or gone")
	flags.StringVar(&device, "device", "", deviceHelp)
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// policyArgs accepts one policy of the table. For a word that resembles a subcommand the
// error suggests that.
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
	name, _, _ := strings.Cut(args[0], ":")
	if err != nil && !slices.Contains(policy.Names(), name) && yamlfile.Nearest(name, policy.Names()) == "" {
		err = fmt.Errorf("%w, %s", err, policy.ExternalName)
	}
	return err
}

func showOrSetPolicy(cmd *cobra.Command, args []string, device string) (api.Policy, error) {
	c := client.New("")
	switch {
	case len(args) == 0 && device == "":
		return c.Policy(cmd.Context())
	case len(args) == 0:
		st, err := c.Status(cmd.Context())
		if err != nil {
			return api.Policy{}, err
		}
		return policyOfDevice(st, device)
	}
	name, params, err := scenario.ParsePolicy(args[0])
	if err != nil {
		return api.Policy{}, usageError{err}
	}
	return c.SetPolicy(cmd.Context(), api.Policy{Name: name, Params: params, Device: device})
}

// policyOfDevice returns the policy in force on a device, which is given by its ID or its index.
func policyOfDevice(st api.Status, name string) (api.Policy, error) {
	i := slices.IndexFunc(st.Devices, func(d api.Device) bool {
		return d.ID == name || d.Index >= 0 && strconv.Itoa(d.Index) == name
	})
	if i < 0 {
		return api.Policy{}, fmt.Errorf("there is no device %q; 'giveway doctor' lists the devices", name)
	}
	p := st.Policy
	for _, own := range st.Policy.Devices {
		if own.Device == st.Devices[i].ID {
			p = own
		}
	}
	p.Device, p.Devices = st.Devices[i].ID, nil
	return p, nil
}

func writePolicy(w io.Writer, p api.Policy, err error, asJSON bool) error {
	switch {
	case err != nil:
		return err
	case asJSON:
		return writeJSON(w, p)
	}
	return printPolicy(w, p)
}

// printPolicy prints a policy, and then those of devices that have their own.
func printPolicy(w io.Writer, p api.Policy) error {
	text := format.Printable(p.Spec())
	if p.Device != "" {
		text += " on " + format.Printable(p.Device)
	}
	switch {
	case p.Overruled == "":
	case p.Name == policy.ExternalName:
		text += "\nIt does not decide: " + format.Printable(p.Overruled)
	default:
		text += "\nIt is overruled, and the devices run with the vendor's own scheduling: " + format.Printable(p.Overruled)
	}
	if _, err := fmt.Fprintln(w, text); err != nil {
		return err
	}
	for _, own := range p.Devices {
		if err := printPolicy(w, own); err != nil {
			return err
		}
	}
	for _, old := range p.Replaced {
		if _, err := fmt.Fprintf(w, "Also on %s, which had %s\n", format.Printable(old.Device), format.Printable(old.Spec())); err != nil {
			return err
		}
	}
	return nil
}

func newPolicyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the policies, the attributes that each uses and its parameters",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), append(policy.List(), extpolicy.Info()))
			}
			return printPolicies(cmd.OutOrStdout(), append(policy.List(), extpolicy.Info()))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printPolicies(w io.Writer, infos []policy.Info) error {
	var t format.Table
	for _, p := range infos {
		t.Add(p.Name, p.Doc)
		if len(p.Uses) > 0 {
			t.Add("", "  uses "+strings.Join(p.Uses, ", "))
		}
		for _, k := range p.Params {
			t.Add("", fmt.Sprintf("  %s=%s  %s (%s)", k.Name, k.Value, k.Doc, k.Range))
		}
	}
	return t.Write(w, 2)
}
