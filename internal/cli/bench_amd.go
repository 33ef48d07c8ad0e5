package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/giveway/giveway/internal/amd/lab/amdbench"
	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/progress"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/spf13/cobra"
)

// amdFlags are the flags of `bench amd`.
type amdFlags struct {
	amdbench.Config
	traditional, batch bool
	json               bool
	html               outputFile
	soak               string
}

func newBenchAMD() *cobra.Command {
	f := amdFlags{html: outputFile{what: "page"}}
	cmd := &cobra.Command{
		Use:   "amd",
		Short: "Compare ways of unmapping queues from an AMD GPU, in the simulator",
		Long: `Compare ways of unmapping offline queues from an AMD GPU for an online request and
mapping them again, for 1 to 64 queues:

  native         no queue is unmapped
  one by one     a call for each queue (--traditional)
  stock suspend  the unmodified driver's DBG_TRAP: one call for the queues of a process
  batch          the patched driver's BATCH_UNMAP and FAST_REMAP (--batch)

If only one of --traditional and --batch is given, the other way is left out.

Every figure is modelled: no AMD GPU was measured. The parameters are printed, each
with its source; docs/AMD.md says what the models leave out.`,
		Example: `  giveway bench amd --traditional --batch
  giveway bench amd --queues 10 --programs 4 --html amd.html
  giveway bench amd --soak scenarios/amd-soak.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			line := progress.Start(cmd.ErrOrStderr(), "simulating")
			defer line.Stop()
			return f.run(cmd.OutOrStdout(), line)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.traditional, "traditional", false, "compare one by one with native and stock suspend")
	flags.BoolVar(&f.batch, "batch", false, "compare batch with native and stock suspend")
	flags.IntSliceVar(&f.Queues, "queues", nil, "numbers of offline queues, from 1 to 64 (default 1,2,4,8,10,16,24,32,48,64)")
	flags.StringSliceVar(&f.Models, "model", amdbench.Models, "models to use")
	flags.IntVar(&f.Processes, "programs", 1, "number of processes that the offline queues belong to, from 1 to 8")
	flags.IntVar(&f.Rounds, "rounds", 200, "online requests for each number of queues")
	flags.Uint64Var(&f.Seed, "seed", 1, "seed of the random numbers")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	flags.StringVar(&f.html.path, "html", "", "write a page with plots to this HTML file")
	flags.StringVar(&f.soak, "soak", "", "run this scenario instead, and print the use of the devices' slots")
	// These return an error only for flags that do not exist.
	_ = cmd.RegisterFlagCompletionFunc("model", cobra.FixedCompletions(amdbench.Models, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagFilename("html", "html")
	_ = cmd.MarkFlagFilename("soak", "yaml", "yml")
	return cmd
}

func (f *amdFlags) run(w io.Writer, line *progress.Line) error {
	if f.soak != "" {
		return runSoak(w, f.soak, f.json, line)
	}
	if f.Processes == 0 || f.Rounds == 0 {
		return usageError{errors.New("--programs and --rounds must be at least 1")}
	}
	for _, way := range amdbench.AllWays {
		if !(way == amdbench.OneByOne && f.batch && !f.traditional || way == amdbench.Batch && f.traditional && !f.batch) {
			f.Ways = append(f.Ways, way)
		}
	}
	if err := f.html.check(); err != nil {
		return err
	}
	f.Progress = func(part float64) { line.Set("simulating", func() float64 { return part }) }
	r, err := amdbench.Run(f.Config)
	line.Stop()
	if err != nil {
		return usageError{err}
	}
	if f.json {
		return errors.Join(writeJSON(w, r), f.html.write(io.Discard, r.WriteHTML))
	}
	return errors.Join(r.WriteText(w), f.html.write(w, r.WriteHTML))
}

// soakJSON is what `bench amd --soak --json` prints.
type soakJSON struct {
	Name       string       `json:"name"`
	Policy     string       `json:"policy"`
	Figures    string       `json:"figures"`
	Devices    []slotsJSON  `json:"devices"`
	Clients    []clientJSON `json:"clients"`
	Calls      uint64       `json:"control_calls"`
	Overruled  string       `json:"overruled,omitempty"`
	Violations []string     `json:"violations,omitempty"`
}

type slotsJSON struct {
	ID          string        `json:"id"`
	Model       string        `json:"model"`
	Slots       int           `json:"hqd_slots"`
	Span        time.Duration `json:"span_ns"`
	Utilisation float64       `json:"hqd_utilisation"`
	Stalled     time.Duration `json:"stalled_ns"`
	Updates     uint64        `json:"updates"`
}

// runSoak runs a scenario under its own policy and prints the use of the devices' slots.
func runSoak(w io.Writer, path string, asJSON bool, line *progress.Line) error {
	s, err := scenario.Load(path)
	if err != nil {
		return err
	}
	o, err := runScenario(s, []string{s.Policy}, scenario.Options{}, line)
	if err != nil {
		return err
	}
	a := analysis.Of(&o)
	r := &o.Runs[0].Result
	v := soakJSON{
		Name: o.Name, Policy: o.Runs[0].Policy, Figures: "modelled", Clients: clientsJSON(a, a.Clients[0]), Calls: r.Calls,
		Violations: r.Violations, Overruled: overruled(r.Overruled),
	}
	for i, d := range r.Devices {
		v.Devices = append(v.Devices, slotsJSON{
			string(d.ID), o.Devices[i].Model.Name, d.Slots, d.Span, d.Utilisation(), d.Stalled, d.Updates,
		})
	}
	if asJSON {
		err = writeJSON(w, v)
	} else {
		err = printSoak(w, &v, &o)
	}
	return errors.Join(err, brokenRules(&o))
}

func printSoak(w io.Writer, v *soakJSON, o *scenario.Outcome) error {
	fmt.Fprintf(w, "%s under %s: %s of virtual time in %s; %d control calls, %d broken rules. Modelled.\n\n", v.Name, v.Policy,
		format.ExactDuration(o.Runs[0].Result.Simulated.Round(time.Second)), format.Duration(o.Wall), v.Calls, len(v.Violations))
	var t format.Table
	t.Add("device", "model", "HQD slots", "used", "stalled", "updates")
	for _, d := range v.Devices {
		t.Add(d.ID, d.Model, fmt.Sprint(d.Slots), format.Percent(d.Utilisation), format.Percent(d.Stalled.Seconds()/d.Span.Seconds()), fmt.Sprint(d.Updates))
	}
	return t.Write(w, 2)
}
