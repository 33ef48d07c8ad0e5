package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/amd/lab/amdbench"
	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/stats"
	"github.com/spf13/cobra"
)

// amdFlags are what the user asked of `bench amd`.
type amdFlags struct {
	amdbench.Config
	traditional, batch bool
	json               bool
	html               string
	soak               string
}

func newBenchAMD() *cobra.Command {
	var f amdFlags
	cmd := &cobra.Command{
		Use:   "amd",
		Short: "Compare ways of taking queues off an AMD GPU, in the simulator's models of it",
		Long: `Compare ways of taking offline queues off an AMD GPU for an online request and
putting them back, for 1 to 64 queues:

  native         nothing is taken off
  one by one     a call for each queue (--traditional)
  stock suspend  the unmodified driver's DBG_TRAP: one call for a program's queues
  batch          the patched driver's BATCH_UNMAP and FAST_REMAP (--batch)

With one of --traditional and --batch the other is left out.

Every figure is modelled: no AMD GPU was measured. The parameters are printed, each
with where it is from; docs/AMD.md says what the models leave out.`,
		Example: `  giveway bench amd --traditional --batch
  giveway bench amd --queues 10 --programs 4 --html amd.html
  giveway bench amd --soak scenarios/amd-soak.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.traditional, "traditional", false, "one by one, beside native and stock suspend")
	flags.BoolVar(&f.batch, "batch", false, "in a batch, beside native and stock suspend")
	flags.IntSliceVar(&f.Queues, "queues", nil, "numbers of offline queues, from 1 to 64 (default 1,2,4,8,10,16,24,32,48,64)")
	flags.StringSliceVar(&f.Models, "model", amdbench.Models, "which models to ask")
	flags.IntVar(&f.Programs, "programs", 1, "programs that the offline queues belong to, from 1 to 8")
	flags.IntVar(&f.Rounds, "rounds", 200, "online requests for each number of queues")
	flags.Uint64Var(&f.Seed, "seed", 1, "seed of chance")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	flags.StringVar(&f.html, "html", "", "write a page with plots to this HTML file")
	flags.StringVar(&f.soak, "soak", "", "instead run this scenario, and say how its devices' slots were used")
	// These fail only for flags that do not exist.
	_ = cmd.RegisterFlagCompletionFunc("model", cobra.FixedCompletions(amdbench.Models, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagFilename("html", "html")
	_ = cmd.MarkFlagFilename("soak", "yaml", "yml")
	return cmd
}

func (f *amdFlags) run(w io.Writer) error {
	if f.soak != "" {
		return runSoak(w, f.soak, f.json)
	}
	for _, way := range amdbench.AllWays {
		left := way == amdbench.OneByOne && f.batch && !f.traditional || way == amdbench.Batch && f.traditional && !f.batch
		if !left {
			f.Ways = append(f.Ways, way)
		}
	}
	if f.Programs == 0 || f.Rounds == 0 {
		return usageError{errors.New("--programs and --rounds must be at least 1")}
	}
	if f.html != "" {
		if err := canWrite(f.html); err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
	}
	r, err := amdbench.Run(f.Config)
	if err != nil {
		return usageError{err}
	}
	if f.json {
		err = writeJSON(w, r)
	} else {
		err = printAMD(w, r)
	}
	if err == nil && f.html != "" {
		if err = writeFile(f.html, r.WriteHTML); err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
		if !f.json {
			fmt.Fprintf(w, "\nThe page is in %s.\n", f.html)
		}
	}
	return err
}

func printAMD(w io.Writer, r *amdbench.Result) error {
	fmt.Fprintf(w, "Every figure is modelled; nothing was measured on an AMD GPU. %d requests of %s each; programs with offline queues: %d; seed %d.\n",
		r.Rounds, format.ExactDuration(r.OnlineWork), r.Programs, r.Seed)
	for i := range r.Models {
		m := &r.Models[i]
		fmt.Fprintf(w, "\n%s: %s\n\n", m.Name, m.Doc)
		if err := printAMDModel(w, m); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "\nPublished by others, not ours:")
	for _, p := range r.Published {
		fmt.Fprintf(w, "  %s: %s: %s\n", p.Source, p.What, p.Value)
	}
	return nil
}

func printAMDModel(w io.Writer, m *amdbench.ModelResult) error {
	var params, waits, costs, gains format.Table
	params.Add("parameter", "value", "kind", "source")
	for _, p := range m.Parameters {
		params.Add(p.Name, p.Value, string(p.Kind), p.Source)
	}
	waits.Add("queues", "way", "own: mean", "P50", "P95", "P99", "max", "answer: mean", "P50", "P95", "P99", "max")
	costs.Add("queues", "way", "unmap", "P99", "remap", "P99", "hiccup", "calls", "updates", "HQDs used", "stalled", "offline kept")
	gains.Add("queues", "way", "against", "own device", "answer", "unmap", "remap")
	for i := range m.Rows {
		r := &m.Rows[i]
		q, way := fmt.Sprint(r.Queues), string(r.Way)
		waits.Add(append(append([]string{q, way}, fiveOf(r.Own)...), fiveOf(&r.Answer)...)...)
		costs.Add(append([]string{q, way}, costCells(r)...)...)
		for _, g := range []struct {
			to string
			*amdbench.SpeedUp
		}{{string(amdbench.OneByOne), r.VsOneByOne}, {string(amdbench.Stock), r.VsStock}} {
			if g.SpeedUp != nil {
				gains.Add(q, way, g.to, format.Ratio(g.Own), format.Ratio(g.Answer), format.Ratio(g.Unmap), format.Ratio(g.Remap))
			}
		}
	}
	err := params.Write(w, 4)
	fmt.Fprintln(w, "\nFrom a request until the device is its own, all offline queues off, and until its answer; modelled:")
	err = errors.Join(err, waits.Write(w, 2))
	fmt.Fprintln(w, "\nWhat the caller waits for and what the device loses, for a request; modelled:")
	err = errors.Join(err, costs.Write(w, 2))
	if len(gains.Rows) > 1 {
		fmt.Fprintln(w, "\nHow many times as long the other way takes, of means; modelled:")
		err = errors.Join(err, gains.Write(w, 3))
	}
	return err
}

// fiveOf is a distribution; natively there is none of some.
func fiveOf(s *stats.Summary) []string {
	if s == nil {
		return strings.Fields("- - - - -")
	}
	var cells []string
	for _, d := range []time.Duration{s.Mean, s.P50, s.P95, s.P99, s.Max} {
		cells = append(cells, format.Duration(d))
	}
	return cells
}

func costCells(r *amdbench.Row) []string {
	cells := strings.Fields("- - - - -")
	if r.Unmap != nil {
		cells = []string{
			format.Duration(r.Unmap.Mean), format.Duration(r.Unmap.P99), format.Duration(r.Remap.Mean), format.Duration(r.Remap.P99), format.Duration(r.Hiccup.Mean),
		}
	}
	return append(cells, format.Number(r.Calls), format.Number(r.Updates), format.Percent(r.Utilisation), format.Percent(r.Stalled), format.Percent(r.OfflineKept))
}

// soakJSON is what `bench amd --soak --json` prints.
type soakJSON struct {
	Name     string       `json:"name"`
	Policy   string       `json:"policy"`
	Figures  string       `json:"figures"`
	Devices  []slotsJSON  `json:"devices"`
	Clients  []clientJSON `json:"clients"`
	Calls    uint64       `json:"control_calls"`
	Overrule string       `json:"overruled,omitempty"`
	Broken   []string     `json:"violations,omitempty"`
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

// runSoak runs a scenario under its own policy.
func runSoak(w io.Writer, path string, asJSON bool) error {
	s, err := scenario.Load(path)
	if err != nil {
		return err
	}
	o, err := s.Run([]string{s.Policy}, scenario.Options{})
	if err != nil {
		return err
	}
	a := analysis.Of(&o)
	r := &o.Runs[0].Result
	v := soakJSON{
		Name: o.Name, Policy: o.Runs[0].Policy, Figures: "modelled", Clients: clientsJSON(a, a.Clients[0]), Calls: r.Calls,
		Broken: r.Violations, Overrule: overruled(r.Overruled),
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
		format.ExactDuration(o.Runs[0].Result.Simulated.Round(time.Second)), format.Duration(o.Wall), v.Calls, len(v.Broken))
	var t format.Table
	t.Add("device", "model", "HQD slots", "used", "stalled", "updates")
	for _, d := range v.Devices {
		t.Add(d.ID, d.Model, fmt.Sprint(d.Slots), format.Percent(d.Utilisation), format.Percent(d.Stalled.Seconds()/d.Span.Seconds()), fmt.Sprint(d.Updates))
	}
	return t.Write(w, 2)
}
