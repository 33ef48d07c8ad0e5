package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/progress"
	"github.com/spf13/cobra"
)

// doctorTime is how long doctor waits for the daemon. Tests set it.
var doctorTime = 10 * time.Second

func newDoctor() *cobra.Command {
	var hqds bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what works here, what does not, and what to do about it",
		Long: `Show what works here, what does not, and what to do about it. Without a daemon it
checks what can be checked without one. The exit status is 1 if something that this
machine has does not work, or if it has no device at all.

With --json it prints the daemon's status; the pid is 0 if no daemon runs.

With --amd-hqds it prints instead the hardware slots (HQDs) of AMD GPUs, as the kernel
dumps them for root. The dump stalls everything on the GPU for a moment: use it once, when
something is wrong.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hqds {
				return doctorHQDs(cmd.OutOrStdout(), cmd.ErrOrStderr(), hqdFile, wantsJSON(cmd))
			}
			line := progress.Start(cmd.ErrOrStderr(), "asking the daemon")
			defer line.Stop()
			ctx, stop := context.WithTimeout(cmd.Context(), doctorTime)
			defer stop()
			st, err := client.New("").Status(ctx)
			user := os.Geteuid() != 0
			switch {
			case errors.Is(err, client.ErrNoDaemon):
				fix := client.StartCommand()
				if os.Getenv("GIVEWAY_SOCKET") == "" { // systemd's daemon listens at the usual socket
					fix += ", or: systemctl start giveway"
				}
				line.Set("checking this machine without a daemon", nil)
				st = localStatus(api.Check{Name: "daemon", Detail: "none is running at " + strings.Join(client.Sockets(), " or "), Fix: fix}, user)
			case errors.Is(err, client.ErrNoAnswer):
				line.Set("checking this machine without the daemon", nil)
				st = localStatus(api.Check{Name: "daemon", Detail: err.Error()}, user)
			case err != nil:
				return err
			}
			line.Stop()
			return errors.Join(show(cmd, st, statusText(st)), failedChecks(st.Checks))
		},
	}
	addJSON(cmd, printJSON)
	cmd.Flags().BoolVar(&hqds, "amd-hqds", false, "print the hardware slots of AMD GPUs, which stalls them for a moment (root)")
	return cmd
}

// localStatus returns what can be checked without a daemon, after a check that says why there is none.
func localStatus(noDaemon api.Check, user bool) api.Status {
	st := api.Status{Devices: []api.Device{}, Checks: []api.Check{noDaemon}}
	if file := defaultConfig(user); file != "" {
		_, err := config.Load(file)
		st.Checks = append(st.Checks, daemon.ConfigCheck(file, err))
	}
	if LocalChecks != nil {
		st.Checks = append(st.Checks, LocalChecks()...)
	}
	return st
}

// deviceName returns the name of a device as messages have it.
func deviceName(d api.Device) string {
	if d.Index < 0 {
		return format.Printable(d.ID)
	}
	return fmt.Sprintf("GPU %d", d.Index)
}

// statusText returns a status as doctor prints it.
func statusText(st api.Status) string {
	var b strings.Builder
	var t format.Table
	if st.PID > 0 {
		fmt.Fprintf(&b, "The daemon is running: version %s, pid %d, for %s, policy %s.\n", format.Printable(st.Version), st.PID, describe.LongTime(st.Uptime), format.Printable(st.Policy.Spec()))
	}
	for _, d := range st.Devices {
		times := "device times are estimated"
		if d.Trace {
			times = "device times are measured (context-switch trace)"
		}
		t.Add("", deviceName(d), format.Printable(fmt.Sprintf("%s (%s, %s): %s", d.Model, d.Backend, d.ID, times)))
	}
	for _, c := range st.Checks {
		mark := "ok"
		if !c.OK {
			mark = "no"
		}
		t.Add(mark, c.Name, format.Printable(c.Detail))
		if c.Fix != "" && !c.OK {
			t.Add("", "", "to do: "+format.Printable(c.Fix))
		}
	}
	_ = t.Write(&b, 3) // a Builder takes everything
	return b.String()
}

// failedChecks returns an error if a check failed.
func failedChecks(checks []api.Check) error {
	failed := 0
	for _, c := range checks {
		if !c.OK {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks failed", failed, len(checks))
}
