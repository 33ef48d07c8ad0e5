package giveway_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readmeLines is the longest that README.md may be: one screen of overview and links.
// Details belong in docs/.
const readmeLines = 120

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n > readmeLines {
		t.Errorf("README.md has %d lines, want at most %d: move details to docs/", n, readmeLines)
	}
}

// TestLinksResolve checks every relative link of every Markdown file: the file exists,
// and has the heading that the link names.
func TestLinksResolve(t *testing.T) {
	pages := map[string]string{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || name == "out" || name == "bin"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			text, err := os.ReadFile(name)
			pages[name] = withoutCode(string(text))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for name, text := range pages {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(match[1], "#")
			target := path.Join(path.Dir(name), file)
			if file == "" {
				target = name
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, match[1], err)
			} else if anchor != "" && !slices.Contains(anchors(pages[target]), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", name, match[1], target)
			}
		}
	}
}

var (
	fence      = regexp.MustCompile("(?ms)^```.*?^```")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
)

// withoutCode removes code blocks and, except in headings, inline code.
func withoutCode(text string) string {
	lines := strings.Split(fence.ReplaceAllString(text, ""), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "#") {
			lines[i] = inlineCode.ReplaceAllString(line, "")
		}
	}
	return strings.Join(lines, "\n")
}

// anchors returns the anchors that GitHub gives to a page's headings.
func anchors(text string) []string {
	var all []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			anchor := strings.ToLower(drop.ReplaceAllString(strings.TrimSpace(title), ""))
			all = append(all, strings.ReplaceAll(anchor, " ", "-"))
		}
	}
	return all
}
