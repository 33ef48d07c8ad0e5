// Command giveway-bench is the GPU work that giveway is measured with: kernels of
// a known length, as batch work that saturates the GPU or as online requests. It
// knows nothing of giveway and prepares nothing for it. It speaks in lines of JSON
// (see internal/bench) and can run the whole benchmark.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/giveway/giveway/internal/bench"
)

const usage = `giveway-bench: GPU work to measure giveway with

  giveway-bench calibrate                          how long the kernels take
  giveway-bench be --kernel 40ms --depth 64        saturate the GPU; tell progress
  giveway-bench lc --kernel 28us --after 5ms       answer requests; tell latencies
  giveway-bench obey                               a kernel for every line of input ("10ms")
  giveway-bench run --cases micro,eight            the benchmark, as a table

Each has --help. be, lc and obey end at "quit" or the end of their input, and with the
process that started them. Kernels are of work, not of waiting: a preempted kernel
takes as much longer as it was away.
`

// A command runs with its arguments. Lines for the harness go to out.
type command func(args []string, in io.Reader, out io.Writer) error

var commands = map[string]command{
	"calibrate": calibrate,
	"be":        saturate,
	"lc":        answer,
	"obey":      obey,
	"run":       run,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	name := os.Args[1]
	err := commands[name](os.Args[2:], os.Stdin, os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "giveway-bench %s: %v\n", name, err)
		os.Exit(2)
	default:
		if name != "run" {
			_ = bench.NewWriter(os.Stdout).Send(bench.Message{Error: err.Error()})
		}
		fmt.Fprintf(os.Stderr, "giveway-bench %s: %v\n", name, err)
		os.Exit(1)
	}
}

// usageError is a mistake on the command line.
type usageError struct{ error }

// parse leaves no words over.
func parse(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if set.NArg() > 0 {
		return usageError{fmt.Errorf("%q is not a flag", set.Arg(0))}
	}
	return nil
}
