package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/spf13/cobra"
)

// onePID accepts one pid.
func onePID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one pid, as 'giveway ps' lists them; got %d", cmd.Name(), len(args))
	}
	_, err := parsePID(args[0])
	return err
}

func parsePID(text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%q is not a pid; 'giveway ps' lists them", text)
	}
	return pid, nil
}

// pidFlag is the value of a flag that takes a pid; 0: it was not given.
type pidFlag int

func (p *pidFlag) Set(text string) error {
	pid, err := parsePID(text)
	*p = pidFlag(pid)
	return err
}

func (p *pidFlag) String() string { return "" }
func (p *pidFlag) Type() string   { return "pid" }

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
		words = append(words, cobra.CompletionWithDesc(strconv.Itoa(p.PID), p.Class()+" "+format.Text(p.Command, 40)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// printChanged prints a process to which the daemon gave attributes, and a warning for
// each of them that has no effect; err is the daemon's refusal.
func printChanged(cmd *cobra.Command, given attr.Values, p api.Process, err error) error {
	if err != nil {
		return err
	}
	warnIgnored(cmd, given, p.Ignored)
	if p.Warning != "" {
		printMessage(cmd, "warning", p.Warning)
	}
	return show(cmd, p, processText(&p)+"\n")
}

// show prints v if --json was given, and otherwise text.
func show(cmd *cobra.Command, v any, text string) error {
	if wantsJSON(cmd) {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// printMessage prints a warning or a note to stderr, as JSON if --json was given.
func printMessage(cmd *cobra.Command, kind, text string) {
	writeMessage(cmd.ErrOrStderr(), wantsJSON(cmd), kind, text)
}

// writeMessage writes an error, a warning or a note. In JSON it is an object with the kind as its
// key: {"error": "..."}.
func writeMessage(w io.Writer, asJSON bool, kind, text string) {
	if asJSON {
		_ = json.NewEncoder(w).Encode(map[string]string{kind: text}) // there is no other place to report it
		return
	}
	fmt.Fprintf(w, "giveway: %s\n", format.Lines(text))
}

// processText returns a process in one line.
func processText(p *api.Process) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", p.PID)
	if p.Command != "" {
		b.WriteString(" (" + format.Text(p.Command, 60) + ")")
	}
	b.WriteString(": " + p.Class())
	if text := attrsText(p); text != "" {
		b.WriteString(", " + text)
	}
	return b.String()
}
