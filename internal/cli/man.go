package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan returns the command that make install runs to write the man pages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a man page for each command into a folder",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("man takes one folder; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

// writeManPages writes the page of a command and of every command below it that is
// not hidden: giveway-policy-list.1 for giveway policy list.
func writeManPages(cmd *cobra.Command, folder string) error {
	if err := os.WriteFile(filepath.Join(folder, manName(cmd)+".1"), []byte(manPage(cmd)), 0o644); err != nil {
		return fmt.Errorf("write a man page: %w", err)
	}
	for _, sub := range shownCommands(cmd) {
		if err := writeManPages(sub, folder); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// shownCommands returns the commands below cmd that help lists.
func shownCommands(cmd *cobra.Command) (shown []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			shown = append(shown, sub)
		}
	}
	return shown
}

// manPage returns a command's help as a man page, in the man macros of roff.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	name, subs := manName(cmd), shownCommands(cmd)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"User Commands\"\n", strings.ToUpper(name), "giveway "+version().Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roffText(name), roffText(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roffText(cmd.UseLine()))
	if len(subs) > 0 {
		fmt.Fprintf(&b, ".br\n.B %s\n", roffText(cmd.CommandPath()+" COMMAND"))
	}
	if cmd.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		roffParagraphs(&b, cmd.Long)
	}
	if len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
	}
	var related []string
	if cmd.HasParent() {
		related = append(related, ".BR "+roffText(manName(cmd.Parent()))+" (1)")
	}
	for _, sub := range subs {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roffText(sub.Name()), roffText(sub.Short))
		related = append(related, ".BR "+roffText(manName(sub))+" (1)")
	}
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() {
		b.WriteString(".SH OPTIONS\n")
		flags.VisitAll(func(f *pflag.Flag) { roffFlag(&b, f) })
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roffText(cmd.Example))
	}
	if len(related) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(related, ",\n"))
	}
	return b.String()
}

func roffFlag(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden {
		return
	}
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

// roffParagraphs writes help text: blank lines separate paragraphs, and indented lines
// are kept as they are.
func roffParagraphs(b *strings.Builder, text string) {
	verbatim := false
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		if indented := line[0] == ' ' || line[0] == '\t'; indented != verbatim {
			verbatim = indented
			b.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[verbatim])
		}
		b.WriteString(roffText(line) + "\n")
	}
	if verbatim {
		b.WriteString(".fi\n")
	}
}

// roffText escapes what roff would take for a command.
func roffText(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace("\n" + text)
	return text[1:]
}
