package giveway_test

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bannedWords do not appear in comments, messages and documentation. The first group
// makes persons of machines and values: name the process, the queue, the daemon. The
// others are metaphors; docs/GLOSSARY.md has the word to use.
var bannedWords = regexp.MustCompile(`(?i)\b(who|whoever|nobody|somebody|anybody|` +
	`least slice|ward|wards|guest|guests|ear|ears|fare|charity|eyes|farewell)\b`)

// allowedWords lists parts of lines in which a banned word is right, by file. "*" is
// every file: there the word is about a person, or about the Unix user "nobody".
var allowedWords = map[string][]string{
	"*":                              {"user who", "owner who", "person who", "people who", "engineer who", `"nobody"`},
	"words_test.go":                  {""},
	"internal/config/config.go":      {`"eyes"`}, // a key of older configuration files
	"internal/config/config_test.go": {"fallback: nobody"},
	"internal/scenario/device.go":    {`"eyes"`}, // a key of older scenario files
}

// TestPlainWords reads comments and string literals of Go, comments of C, C++ and CUDA,
// and Markdown outside code.
func TestPlainWords(t *testing.T) {
	counts := map[string]int{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && (strings.HasPrefix(entry.Name(), ".") || slices.Contains([]string{"out", "bin", "testdata"}, entry.Name())) {
				return fs.SkipDir
			}
			return nil
		}
		texts, err := proseOf(name)
		if err != nil {
			return err
		}
		for _, found := range bannedIn(name, texts) {
			counts[path.Dir(name)]++
			t.Error(found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%4d %s", counts[dir], dir)
	}
}

// prose is a piece of a file that people read.
type prose struct {
	line int // of its first line
	text string
}

// bannedIn returns a message for each line with a banned word.
func bannedIn(name string, texts []prose) (found []string) {
	for _, p := range texts {
		for i, line := range strings.Split(p.text, "\n") {
			word := bannedWords.FindString(line)
			allowed := func(part string) bool { return strings.Contains(line, part) }
			if word != "" && !slices.ContainsFunc(slices.Concat(allowedWords[name], allowedWords["*"]), allowed) {
				found = append(found, fmt.Sprintf("%s:%d: %q in %q", name, p.line+i, word, strings.TrimSpace(line)))
			}
		}
	}
	return found
}

// proseOf returns what people read in a file; nothing for files that are not checked.
func proseOf(name string) ([]prose, error) {
	read := map[string]func(string) []prose{
		".go": goProse, ".c": cProse, ".h": cProse, ".cu": cProse, ".md": markdownProse,
	}[path.Ext(name)]
	if read == nil {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	return read(string(text)), err
}

func goProse(src string) (all []prose) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, []byte(src), nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		switch tok {
		case token.EOF:
			return all
		case token.COMMENT, token.STRING:
			all = append(all, prose{file.Line(pos), text})
		}
	}
}

var cComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"`)

func cProse(src string) (all []prose) {
	for _, at := range cComment.FindAllStringIndex(src, -1) {
		all = append(all, prose{1 + strings.Count(src[:at[0]], "\n"), src[at[0]:at[1]]})
	}
	return all
}

func markdownProse(src string) (all []prose) {
	blank := fence.ReplaceAllStringFunc(src, func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) })
	return []prose{{1, inlineCode.ReplaceAllString(blank, "``")}}
}

func TestBannedWordsAreFound(t *testing.T) {
	src := "package p // line one\n\n/* two\n   who runs */\nvar s = \"somebody\" // fine\nvar ear int\n"
	got := bannedIn("p.go", goProse(src))
	want := []string{`p.go:4: "who" in "who runs */"`, `p.go:5: "somebody" in "\"somebody\""`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := bannedIn("a.md", markdownProse("x `who`\n\n```\nwho\n```\nwhoever\n")); len(got) != 1 || !strings.HasPrefix(got[0], "a.md:6:") {
		t.Errorf("Markdown: got %q, want one at line 6", got)
	}
}
