// Command giveway-bench runs GPU work to measure Giveway with: kernels of a known
// length, as batch work that fills the GPU or as online requests. The work needs no
// support for Giveway in the process. It prints lines of JSON (see internal/bench).
// Subcommand run is the whole benchmark.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/giveway/giveway/internal/bench"
)

const usage = `giveway-bench: GPU work to measure Giveway with

  giveway-bench calibrate                          measure how long the kernels take
  giveway-bench be --kernel 40ms --depth 64        batch (best effort): fill the GPU, print progress
  giveway-bench lc --kernel 28us --after 5ms       online (latency critical): serve requests, print latencies
  giveway-bench obey                               launch a kernel for each line of input, such as 10ms
  giveway-bench run --cases micro,eight            run the benchmark, print tables
  giveway-bench soak --for 1h                      processes that come and go, under the daemon
  giveway-bench stops                              AMD: time to stop and start queues, in each way
  giveway-bench targets --results FOLDER           NVIDIA: print what was measured against the targets
  giveway-bench amd-targets --results FOLDER       the same for AMD

Each has --help. be, lc and obey exit at "quit" or the end of their input, and when the
process that started them exits. A kernel does a fixed amount of work: if it is
preempted for 1 ms, it takes 1 ms longer.
`

// command runs a subcommand with its flags and arguments. Lines for the harness go to
// out.
type command func(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error

var commands = map[string]command{
	"calibrate": calibrate,
	"be":        runBatch,
	"lc":        runOnline,
	"obey":      obey,
	"run":       run,
	"soak":      soak,

	"stops":       compareStops,
	"targets":     printTargets(bench.WriteTargets),
	"amd-targets": printTargets(bench.WriteAMDTargets),
}

// clients are the commands that write messages.
var clients = map[string]bool{"calibrate": true, "be": true, "lc": true, "obey": true}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	name := os.Args[1]
	switch name {
	case "help", "-h", "-help", "--help":
		fmt.Print(usage)
		return
	}
	if commands[name] == nil {
		fmt.Fprintf(os.Stderr, "giveway-bench: there is no command %.40q; 'giveway-bench --help' lists them\n", name)
		os.Exit(2)
	}
	err := commands[name](flag.NewFlagSet("giveway-bench "+name, flag.ContinueOnError), os.Args[2:], os.Stdin, os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintf(os.Stderr, "giveway-bench %s: %v\n", name, err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	if clients[name] {
		_ = bench.NewWriter(os.Stdout).Send(bench.Message{Error: err.Error()})
	}
	os.Exit(1)
}

// usageError is an error in the command line.
type usageError struct{ error }

// parse parses flags. Other arguments are an error.
func parse(set *flag.FlagSet, args []string) error {
	err := set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err == nil && set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}
