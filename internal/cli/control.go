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
	"github.com/spf13/cobra"
)

// onePID accepts one pid.
func onePID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one pid, as 'giveway ps' lists them; there are %d", cmd.Name(), len(args))
	}
	if pid, err := strconv.Atoi(args[0]); err != nil || pid <= 0 {
		return fmt.Errorf("%q is not a pid; 'giveway ps' lists them", args[0])
	}
	return nil
}

// completePID completes the pids of the processes that the daemon knows.
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
		words = append(words, cobra.CompletionWithDesc(strconv.Itoa(p.PID), p.Class()+" "+cut(printable(p.Command), 40)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// changeProcess sets attributes of a process and prints the process as it is then.
func changeProcess(cmd *cobra.Command, pid string, c api.Change, asJSON bool) error {
	id, _ := strconv.Atoi(pid) // onePID has checked it
	p, err := client.New("").Change(cmd.Context(), id, c)
	if err != nil {
		return err
	}
	warnIgnored(cmd.ErrOrStderr(), c.Values, p.Ignored, asJSON)
	return printProcess(cmd, &p, asJSON)
}

func printProcess(cmd *cobra.Command, p *api.Process, asJSON bool) error {
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), p)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), describe(p))
	return err
}

// describe returns a process in one line.
func describe(p *api.Process) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", p.PID)
	if p.Command != "" {
		b.WriteString(" (" + cut(printable(p.Command), 60) + ")")
	}
	b.WriteString(": " + p.Class())
	if text := attrsText(p); text != "" {
		b.WriteString(", " + text)
	}
	return b.String()
}

// printable returns s without characters that a terminal would obey: any user can
// choose a command line.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// cut shortens s to at most width characters; zero is any number.
func cut(s string, width int) string {
	if letters := []rune(s); width > 0 && len(letters) > width {
		return string(letters[:width-3]) + "..."
	}
	return s
}
