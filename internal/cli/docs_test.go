package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docCommand finds commands in code, such as `giveway set 4711 --class batch`. A command
// ends with the line, at a pipe, at the end of the code, or at a comment.
var docCommand = regexp.MustCompile("(?:^|[ `'$/(])giveway ([a-z][^`'|;#&)\n]*)")

// helmNames removes the namespace and the release that are called giveway too.
var helmNames = strings.NewReplacer("-n giveway ", "", "install giveway ", "", "upgrade giveway ", "")

// TestDocumentedCommands: every command in the documentation exists and has its flags.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("find the pages: %d pages, %v", len(pages), err)
	}
	more, _ := filepath.Glob("../../*/*/README.md")
	checked := 0
	for _, page := range append(append(pages, more...), "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range codeOf(string(text)) {
			line = helmNames.Replace(line)
			for _, match := range docCommand.FindAllStringSubmatch(line, -1) {
				checked++
				if problem := checkCommand(strings.Fields(match[1])); problem != "" {
					t.Errorf("%s: giveway %s: %s", page, match[1], problem)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d commands were found in the documentation: does the pattern still fit?", checked)
	}
}

// codeOf returns the lines of code blocks and the inline code of a page.
func codeOf(page string) (code []string) {
	inline := regexp.MustCompile("`[^`\n]+`")
	fenced := false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "    "):
			code = append(code, line)
		default:
			code = append(code, inline.FindAllString(line, -1)...)
		}
	}
	return code
}

// checkCommand returns what is wrong with the words after giveway: a command that does
// not exist, or a flag that the command does not have.
func checkCommand(words []string) string {
	cmd, rest, err := newRoot().Find(words)
	if err != nil || cmd.Name() == "giveway" {
		return "there is no such command"
	}
	for _, word := range rest {
		name, isFlag := strings.CutPrefix(word, "--")
		if word == "--" {
			break // what follows is another program's
		}
		name, _, _ = strings.Cut(name, "=")
		if isFlag && name != "help" && cmd.Flags().Lookup(name) == nil {
			return "there is no flag --" + name
		}
	}
	return ""
}
