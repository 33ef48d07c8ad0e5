package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan is for packagers: make install runs it.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a man page for each command into a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

// writeManPages writes the page of a command and of every command below it that is
// not hidden: giveway-policy-list.1 for giveway policy list.
func writeManPages(cmd *cobra.Command, folder string) error {
	var errs []error
	if cmd.IsAvailableCommand() || !cmd.HasParent() {
		name := manName(cmd) + ".1"
		errs = append(errs, os.WriteFile(filepath.Join(folder, name), []byte(manPage(cmd)), 0o644))
		for _, sub := range cmd.Commands() {
			errs = append(errs, writeManPages(sub, folder))
		}
	}
	return errors.Join(errs...)
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns a command's help as a man page, in the man macros of roff.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	name := manName(cmd)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"User Commands\"\n", strings.ToUpper(name), "giveway "+version().Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roffText(name), roffText(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roffText(cmd.UseLine()))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".br\n.B %s\n", roffText(cmd.CommandPath()+" COMMAND"))
	}
	if cmd.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		roffParagraphs(&b, cmd.Long)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roffText(sub.Name()), roffText(sub.Short))
			}
		}
	}
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() {
		b.WriteString(".SH OPTIONS\n")
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				roffFlag(&b, f)
			}
		})
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roffText(cmd.Example))
	}
	roffSeeAlso(&b, cmd)
	return b.String()
}

func roffFlag(b *strings.Builder, f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	names := "--" + f.Name
	if f.Shorthand != "" {
		names = "-" + f.Shorthand + ", " + names
	}
	fmt.Fprintf(b, ".TP\n.B %s", roffText(names))
	if value != "" {
		fmt.Fprintf(b, " \\fI%s\\fR", roffText(value))
	}
	b.WriteString("\n" + roffText(usage))
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
	default:
		fmt.Fprintf(b, " (default %s)", roffText(f.DefValue))
	}
	b.WriteString("\n")
}

func roffSeeAlso(b *strings.Builder, cmd *cobra.Command) {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, manName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			pages = append(pages, manName(sub))
		}
	}
	if len(pages) == 0 {
		return
	}
	b.WriteString(".SH SEE ALSO\n")
	for i, page := range pages {
		end := ","
		if i == len(pages)-1 {
			end = ""
		}
		fmt.Fprintf(b, ".BR %s (1)%s\n", roffText(page), end)
	}
}

// roffParagraphs writes help text: blank lines part paragraphs, and indented lines are
// kept as they are.
func roffParagraphs(b *strings.Builder, text string) {
	verbatim := false
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		line = strings.TrimRight(line, "\n")
		if indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t"); indented != verbatim && line != "" {
			verbatim = indented
			b.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[verbatim])
		}
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roffText(line) + "\n")
	}
	if verbatim {
		b.WriteString(".fi\n")
	}
}

// roffText escapes what roff would take for a command.
func roffText(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
