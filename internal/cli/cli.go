// Package cli is the command line, one file per subcommand. It parses arguments, calls
// other packages and prints the results.
package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // the command failed
	exitUsage   = 2 // the command line is wrong
)

// usageError is a mistake on the command line that the command itself found.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Main runs the command line and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	checkHelp(root)
	helpErr := rememberHelpError(root)
	// Cobra checks arguments and flags before it runs a command: an error before that is a
	// usage error.
	parsed := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := emptyFlag(cmd)
		parsed = err == nil
		return err
	}
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil && *helpErr == nil {
		return exitOK
	}
	if err == nil {
		err, parsed = *helpErr, true
	}
	var program ended
	if errors.As(err, &program) {
		return program.exit(cmd)
	}
	asJSON := wantsJSON(cmd) || !parsed && namesJSON(args)
	writeMessage(stderr, asJSON, "error", err.Error())
	if !parsed || errors.As(err, new(usageError)) {
		if !asJSON {
			fmt.Fprintf(stderr, "See %q.\n", cmd.CommandPath()+" --help")
		}
		return exitUsage
	}
	return exitFailure
}

// namesJSON reports whether --json is among arguments of which not all were parsed.
func namesJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "giveway",
		Short: "Priority, preemption and fair shares for accelerators",
		Long: `Giveway gives accelerators what nice and the kernel's scheduler give CPUs: online
work has the device as if it were alone, batch work takes what is left.

'make install' puts files that help names, docs/ and scenarios/, into share/doc/giveway.`,
		Args:          noSuchCommand,
		Version:       version().Version,
		SilenceErrors: true, // Main prints them, once
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newDaemon(), newRun(), newSet(), newHint(), newPs(), newDashboard(), newTop(), newExplain(), newPause(), newResume(), newPolicy(), newPool(), newLogCommand(), newDoctor(), newRestore(),
		newTrace(), newSim(), newBench(), newVersion(), newMan(), newGuardian(), newFrontEnd(), newTryFilters(), newPoolKeeper(),
	)
	return root
}

// addCompletion adds cobra's command completion, which by itself prints its help for an unknown
// shell. It writes to the output that root has now.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = noSuchCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// checkHelp makes the command help refuse what is not a command; by itself it prints the help of
// the command above.
func checkHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = func(cmd *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				return noSuchCommand(found, rest)
			}
		}
	}
}

// rememberHelpError returns where the error of writing help is kept: cobra ignores it.
func rememberHelpError(root *cobra.Command) *error {
	var err error
	help, out := root.HelpFunc(), root.OutOrStdout()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		_, err = out.Write(text.Bytes())
	})
	return &err
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments; got %q", strings.TrimPrefix(cmd.CommandPath(), "giveway "), args[0])
}

// noSuchCommand refuses arguments that are not the name of a command. It suggests the
// command with the most similar name.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := yamlfile.Nearest(args[0], names); near != "" {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], near)
	}
	for _, c := range cmd.Commands() {
		for _, below := range c.Commands() {
			if below.Name() == args[0] && below.IsAvailableCommand() {
				return fmt.Errorf("there is no command %q; did you mean %s %s?", args[0], c.Name(), below.Name())
			}
		}
	}
	return fmt.Errorf("there is no command %q", args[0])
}
