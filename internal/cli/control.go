package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/spf13/cobra"
)

// attrFlags are what may be asked for a program, by set and by run.
type attrFlags struct {
	class    string
	weight   uint32
	priority int32
	deadline time.Duration
	slo      time.Duration
	bound    uint32
	batch    uint32
	predict  bool
}

func (f *attrFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.class, "class", "", "class: "+strings.Join(api.Classes, ", "))
	f.weight = 1
	flags.Var(&number{to: &f.weight, least: 1, most: api.MostWeight}, "weight", "share among its like, twice as much with twice the weight")
	flags.Int32Var(&f.priority, "priority", 0, "higher runs first, under policies that go by it")
	flags.DurationVar(&f.deadline, "deadline", 0, "from ready to done, such as 20ms, under policies that go by it; 0 is none")
	flags.DurationVar(&f.slo, "slo", 0, "how long a request may take, nearly always, under policies that go by it; 0 is none")
	flags.Var(&number{to: &f.bound, most: api.MostBound, zero: "none"}, "bound", "commands in flight at most, more if they are short, where the policy has no bound; 0 is any number (needs the shim)")
	flags.Var(&number{to: &f.batch, most: api.MostBound, zero: "as many as seem right"}, "bound-batch", "after how many commands at most it is looked how many are done; 0 is as many as seem right (needs the shim)")
	flags.BoolVar(&f.predict, "predict", false, "take the device a moment before requests that come in step (needs the shim and class online)")
	// It fails only for flags that do not exist.
	_ = cmd.RegisterFlagCompletionFunc("class", completeClass)
}

// change is what was asked for: the flags that are there.
func (f *attrFlags) change(cmd *cobra.Command) (api.Change, error) {
	var c api.Change
	given := cmd.Flags().Changed
	if given("class") {
		c.Class = &f.class
	}
	if given("weight") {
		c.Weight = &f.weight
	}
	if given("priority") {
		c.Priority = &f.priority
	}
	if given("deadline") {
		c.Deadline = &f.deadline
	}
	if given("slo") {
		c.SLO = &f.slo
	}
	if given("bound") {
		c.Bound = &f.bound
	}
	if given("bound-batch") {
		c.Batch = &f.batch
	}
	if given("predict") {
		c.Predict = &f.predict
	}
	if err := c.Check(); err != nil {
		return c, usageError{err}
	}
	return c, nil
}

var classDocs = map[string]string{
	"online":   "latency-critical: batch and idle give way to it",
	"standard": "left exactly as the vendor has it",
	"batch":    "gives way to online, shares the rest by weight",
	"idle":     "runs when nothing else is ready",
}

func completeClass(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var words []string
	for _, class := range api.Classes {
		words = append(words, cobra.CompletionWithDesc(class, classDocs[class]))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// onePID takes one pid.
func onePID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one pid, as 'giveway ps' lists them; there are %d", cmd.Name(), len(args))
	}
	if pid, err := strconv.Atoi(args[0]); err != nil || pid <= 0 {
		return fmt.Errorf("%q is not a pid; 'giveway ps' lists them", args[0])
	}
	return nil
}

// completePID asks the daemon, if there is one.
func completePID(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	all, err := client.New("").Processes(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, p := range all {
		words = append(words, cobra.CompletionWithDesc(strconv.Itoa(p.PID), p.Class+" "+cut(printable(p.Command), 40)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// changeProcess asks the daemon for a change and tells how the process then is.
func changeProcess(cmd *cobra.Command, pid string, c api.Change, asJSON bool) error {
	id, _ := strconv.Atoi(pid) // onePID has seen it
	p, err := client.New("").Change(cmd.Context(), id, c)
	if err != nil {
		return err
	}
	warnOf(cmd.ErrOrStderr(), c, p, asJSON)
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), p)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), describe(p))
	return err
}

// describe is a process in a line.
func describe(p api.Process) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", p.PID)
	if p.Command != "" {
		b.WriteString(" (" + cut(printable(p.Command), 60) + ")")
	}
	b.WriteString(": " + p.Class)
	if p.Weight > 0 {
		fmt.Fprintf(&b, ", weight %d", p.Weight)
	}
	if p.Priority != 0 {
		fmt.Fprintf(&b, ", priority %d", p.Priority)
	}
	for _, t := range []struct {
		what string
		time time.Duration
	}{
		{"requests within ", p.SLO},
		{"deadline ", p.Deadline},
		{"laxity ", p.Laxity},
		{"work ", p.Work},
		{"next request in ", p.Expect},
	} {
		if t.time > 0 {
			b.WriteString(", " + t.what + format.Duration(t.time))
		}
	}
	if p.Bound > 0 {
		fmt.Fprintf(&b, ", bound %d", p.Bound)
		if p.Batch > 0 {
			fmt.Fprintf(&b, " in batches of %d", p.Batch)
		}
	}
	for _, w := range []struct {
		what string
		is   bool
	}{{"predicted", p.Predict}, {"idempotent", p.Idempotent}, {"paused", p.Paused}} {
		if w.is {
			b.WriteString(", " + w.what)
		}
	}
	return b.String()
}

// printable is s without what a terminal would obey: a command line is the
// choice of whoever started it.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// cut shortens s to so many letters; zero is any number.
func cut(s string, most int) string {
	if letters := []rune(s); most > 0 && len(letters) > most {
		return string(letters[:most-3]) + "..."
	}
	return s
}
