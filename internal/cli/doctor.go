package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/spf13/cobra"
)

// LocalChecks looks at the machine where no daemon runs to ask. It is set by
// whoever knows the devices.
var LocalChecks func() []api.Check

func newDoctor() *cobra.Command {
	var asJSON, hqds bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what works here, what does not, and what to do about it",
		Long: `Say what works here, what does not, and what to do about it. Without a daemon, what
can be seen without one is looked at. The exit status is 1 if something does not work.

With --json it prints a status as the daemon has it; its pid is 0 without a daemon.

With --amd-hqds it prints instead what is in the hardware slots (HQDs) of AMD GPUs, as the
kernel dumps them for root. The driver holds up everything on the GPU while it does: look
once, when something is wrong, and not again and again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hqds {
				return doctorHQDs(cmd.OutOrStdout(), cmd.ErrOrStderr(), hqdFile, asJSON)
			}
			st, err := client.New("").Status(cmd.Context())
			if errors.Is(err, client.ErrNoDaemon) {
				st = localStatus(err)
			} else if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), st)
			} else {
				err = printStatus(cmd.OutOrStdout(), st)
			}
			return errors.Join(err, unwell(st.Checks))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&hqds, "amd-hqds", false, "print the hardware slots of AMD GPUs instead, which stalls them for a moment (root)")
	return cmd
}

// localStatus is what can be said without a daemon.
func localStatus(why error) api.Status {
	st := api.Status{Devices: []api.Device{}, Checks: []api.Check{
		{Name: "daemon", Detail: why.Error(), Fix: "giveway daemon, or: systemctl start giveway"},
	}}
	if LocalChecks != nil {
		st.Checks = append(st.Checks, LocalChecks()...)
	}
	return st
}

func printStatus(w io.Writer, st api.Status) error {
	var t format.Table
	if st.PID > 0 {
		if _, err := fmt.Fprintf(w, "The daemon runs: version %s, pid %d, for %s, policy %s.\n", printable(st.Version), st.PID, longTime(st.Uptime), policySpec(st.Policy)); err != nil {
			return err
		}
	}
	for _, d := range st.Devices {
		eyes := "who ran is guessed"
		if d.Eyes {
			eyes = "the hardware tells who ran"
		}
		name := fmt.Sprintf("GPU %d", d.Index)
		if d.Index < 0 {
			name = printable(d.ID)
		}
		t.Add("", name, fmt.Sprintf("%s (%s, %s): %s", d.Model, d.Backend, d.ID, eyes))
	}
	for _, c := range st.Checks {
		mark := "ok"
		if !c.OK {
			mark = "no"
		}
		t.Add(mark, c.Name, c.Detail)
		if c.Fix != "" && !c.OK {
			t.Add("", "", "to do: "+c.Fix)
		}
	}
	return t.Write(w, 3)
}

// unwell is the error of checks that did not pass.
func unwell(checks []api.Check) error {
	bad := 0
	for _, c := range checks {
		if !c.OK {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks did not pass", bad, len(checks))
}
