package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/progress"
)

// run measures cases and writes the tables to out.
func run(set *flag.FlagSet, args []string, _ io.Reader, out io.Writer) error {
	var config bench.Config
	cases := set.String("cases", "", "`names` of cases or groups, separated by commas; empty: all")
	giveway := set.String("giveway", "", "`path` of the giveway program; its daemon must run. Empty: measure only alone and native")
	asJSON := set.String("json", "", "write the result with all samples to this `file`, after each case")
	page := set.String("html", "", "write a page with plots to this `file`")
	set.StringVar(&config.Traces, "traces", "", "write the daemon's trace of each phase to this `folder`")
	set.DurationVar(&config.Length, "length", 5*time.Second, "`length` of each measurement")
	registerGPU(set, &config.Runtime, &config.Device)
	set.StringVar(&config.Python, "python", "python3", "Python `program` for the PyTorch cases")
	only := set.Bool("targets-only", false, "leave out what no target needs: MPS, most random arrivals, changes of attributes")
	mps := set.Bool("mps", true, "measure also with an MPS server, in the cases that have it")
	if err := parse(set, args); err != nil {
		return err
	}
	if runtimes[config.Runtime] == nil {
		return usageError{fmt.Errorf("--runtime %q: want cuda, hip or auto", config.Runtime)}
	}
	chosen, err := bench.Select(splitNames(*cases))
	if err != nil {
		return usageError{err}
	}
	for i := range chosen {
		if *only {
			chosen[i] = chosen[i].ForTargets()
		}
	}
	switch {
	case config.Traces != "" && *giveway == "":
		return usageError{errors.New("--traces needs --giveway: the daemon records them")}
	case config.Traces != "":
		if err := os.MkdirAll(config.Traces, 0o755); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config.Client = []string{self}
	config.Progress = progress.Start(os.Stderr, "starting")
	defer config.Progress.Stop()
	config.Log = config.Progress.Writer(os.Stderr)
	if *giveway != "" {
		config.Giveway = bench.Program(*giveway)
		config.RunWith = []string{*giveway, "run"}
		config.Ask = func(args ...string) []byte {
			out, _ := exec.Command(*giveway, args...).Output() // doctor fails where a check fails, and prints all the same
			return out
		}
	}
	if *mps {
		config.MPSControl = bench.MPSControl
	}
	var saving error
	config.Save = func(r *bench.Result) {
		saving = errors.Join(write(*asJSON, r.WriteJSON), write(*page, r.WriteHTML))
	}
	ctx, stop := interruptible()
	defer stop()
	result, err := bench.Run(ctx, config, chosen)
	config.Progress.Stop()
	return errors.Join(err, saving, result.WriteTable(out))
}

// printTargets returns the command that writes a table of targets.
func printTargets(write func(w io.Writer, folder string) (met bool, err error)) command {
	return func(set *flag.FlagSet, args []string, _ io.Reader, out io.Writer) error {
		results := set.String("results", "results", "`folder` with the JSON files of a run")
		if err := parse(set, args); err != nil {
			return err
		}
		_, err := write(out, *results)
		return err
	}
}

func splitNames(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// write writes a file, unless path is empty.
func write(path string, content func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(content(f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
