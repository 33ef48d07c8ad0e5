package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/progress"
	"github.com/giveway/giveway/internal/report"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/trace"
	"github.com/giveway/giveway/policy"
	"github.com/spf13/cobra"
)

// simFlags are the flags of `sim`.
type simFlags struct {
	policy, compare string
	seed            uint64
	hasSeed, json   bool
	brief           bool
	report, trace   outputFile
}

func newSim() *cobra.Command {
	f := simFlags{report: outputFile{what: "report"}, trace: outputFile{what: "trace"}}
	cmd := &cobra.Command{
		Use:   "sim FILE",
		Short: "Run a scenario in the simulator",
		Long: `Run a scenario in the simulator: every client alone, then all clients together
under each policy. Without --policy and --compare the policies are native (no
daemon) and the scenario's own.

A policy may have parameters: --policy giveway:turn=20ms,slice=200us
docs/SCENARIOS.md describes scenario files and defines the figures in the output.`,
		Example: `  giveway sim scenarios/demo.yaml
  giveway sim scenarios/demo.yaml --compare native,rr,giveway,giveway:turn=20ms
  giveway sim scenarios/demo.yaml --report out.html --trace out.pftrace`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("sim takes one scenario file, such as scenarios/demo.yaml; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.hasSeed = cmd.Flags().Changed("seed")
			line := progress.Start(cmd.ErrOrStderr(), "reading "+args[0])
			defer line.Stop()
			return runSim(cmd.OutOrStdout(), args[0], &f, line)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "", "run under this policy only")
	flags.StringVar(&f.compare, "compare", "", "run under each of these policies, separated by commas, or under \"all\"")
	flags.Uint64Var(&f.seed, "seed", 0, "seed of the random numbers (default: the scenario's)")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	flags.BoolVar(&f.brief, "brief", false, "print the result in one line instead of tables")
	flags.StringVar(&f.report.path, "report", "", "write an HTML report to this file")
	flags.StringVar(&f.trace.path, "trace", "", "write a timeline for ui.perfetto.dev to this file")
	// These return an error only for flags that do not exist.
	_ = cmd.RegisterFlagCompletionFunc("policy", completePolicy)
	_ = cmd.RegisterFlagCompletionFunc("compare", completePolicies)
	_ = cmd.MarkFlagFilename("report", "html")
	_ = cmd.MarkFlagFilename("trace", "pftrace")
	return cmd
}

func completePolicy(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range policy.List() {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Doc))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completePolicies completes the last policy of a list.
func completePolicies(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var lists []string
	for _, name := range policy.Names() {
		if !slices.Contains(scenario.SplitPolicies(before), name) {
			lists = append(lists, before+name)
		}
	}
	return lists, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// policies returns the policies to run under.
func (f *simFlags) policies(s *scenario.Scenario) ([]string, error) {
	var names []string
	switch {
	case f.policy != "" && f.compare != "":
		return nil, usageError{errors.New("--policy and --compare exclude each other")}
	case f.policy != "":
		names = []string{f.policy}
	case f.compare == "all":
		names = policy.Names()
	case f.compare != "":
		names = scenario.SplitPolicies(f.compare)
	case s.Policy == scenario.Native:
		names = []string{scenario.Native}
	default:
		names = []string{scenario.Native, s.Policy}
	}
	for i, name := range names {
		if err := scenario.CheckPolicy(name); err != nil {
			return nil, usageError{err}
		}
		if slices.Contains(names[:i], name) {
			return nil, usageError{fmt.Errorf("policy %s is listed twice", name)}
		}
	}
	return names, nil
}

// timelineLimit is how many pieces of device time, and how many actions, are kept
// for the report and the trace: some tens of megabytes of trace.
const timelineLimit = 200_000

func runSim(w io.Writer, path string, f *simFlags, line *progress.Line) error {
	s, err := scenario.Load(path)
	if err != nil {
		return err
	}
	policies, err := f.policies(s)
	if err != nil {
		return err
	}
	if f.hasSeed {
		s.Config.Seed = f.seed
	}
	if err := cmp.Or(f.report.check(), f.trace.check()); err != nil {
		return err
	}
	options := scenario.Options{Compare: f.compare != ""}
	if f.report.path != "" || f.trace.path != "" {
		options.Segments, options.Actions = timelineLimit, timelineLimit
	}
	o, err := runScenario(s, policies, options, line)
	if err != nil {
		return err
	}
	a := analysis.Of(&o)
	notes := w // names the files
	switch {
	case f.json:
		notes, err = io.Discard, writeJSON(w, toJSON(a))
	case f.brief:
		notes, err = io.Discard, printBrief(w, a)
	default:
		err = printOutcome(w, a)
	}
	return errors.Join(
		err,
		f.report.write(notes, func(w io.Writer) error { return report.Write(w, a) }),
		f.writeTrace(notes, o.Runs),
		brokenRules(&o),
	)
}

// maxTrace is how many bytes a trace has at most: viewers read all of it into memory.
const maxTrace = 64_000_000

// writeTrace writes the trace, and says on w what is not in it.
func (f *simFlags) writeTrace(w io.Writer, runs []scenario.Run) error {
	var cuts []trace.Cut
	err := f.trace.write(w, func(w io.Writer) (err error) {
		cuts, err = trace.Write(w, runs, maxTrace)
		return err
	})
	if err != nil || len(cuts) == 0 {
		return err
	}
	var list []string
	for _, c := range cuts {
		list = append(list, c.Policy+" "+format.Duration(c.Until))
	}
	_, err = fmt.Fprintf(w, "To stay below %s the trace has only the beginning of these runs: %s. --policy traces more of one.\n",
		format.Bytes(maxTrace), strings.Join(list, ", "))
	return err
}

// runScenario runs a scenario and shows its progress. The line is gone when it returns.
func runScenario(s *scenario.Scenario, policies []string, o scenario.Options, line *progress.Line) (scenario.Outcome, error) {
	defer line.Stop()
	o.Simulated = new(atomic.Int64)
	total := s.Total(len(policies))
	under := policies[0]
	if len(policies) > 1 {
		under = fmt.Sprintf("%d policies", len(policies))
	}
	text := fmt.Sprintf("simulating %s, alone and under %s", format.Plural(len(s.Config.Clients), "client"), under)
	line.Set(text, func() float64 { return float64(o.Simulated.Load()) / float64(total) })
	return s.Run(policies, o)
}

// brokenRules returns the violations that the simulator found as one error.
func brokenRules(o *scenario.Outcome) error {
	broken := o.Violations()
	if len(broken) == 0 {
		return nil
	}
	return fmt.Errorf("rules of the simulator were broken, with seed %d:\n  %s", o.Seed, strings.Join(broken, "\n  "))
}
