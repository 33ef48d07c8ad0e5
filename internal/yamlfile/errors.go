package yamlfile

import (
	"fmt"
	"slices"
	"strings"
)

// mostErrors is how many mistakes are told at a time.
const mostErrors = 10

// Error is one mistake in a file.
type Error struct {
	File    string
	Line    int    // zero: the file as a whole
	Field   string // such as clients[2].arrival; empty for the file as a whole
	Problem string // what is wrong, and what is allowed
}

func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}

// Errors are the mistakes found in a file, in the order of the file. There may
// be more than it holds once it holds mostErrors.
type Errors []Error

func (es Errors) Error() string {
	if len(es) == 1 {
		return es[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d mistakes", len(es))
	if len(es) == mostErrors {
		b.WriteString(", and perhaps more")
	}
	b.WriteString(":")
	for _, e := range es {
		b.WriteString("\n  " + e.Error())
	}
	return b.String()
}

// OneOf says what is allowed in place of word, and which of it was perhaps meant.
func OneOf(word string, allowed []string) string {
	if near := Nearest(word, allowed); near != "" {
		return fmt.Sprintf("did you mean %s? There are: %s", near, strings.Join(allowed, ", "))
	}
	return "there are: " + strings.Join(allowed, ", ")
}

// Nearest returns the word of allowed that a slip of the finger or two turns
// into word, if there is one.
func Nearest(word string, allowed []string) string {
	best, most := "", min(2, len(word)/2)
	for _, a := range allowed {
		if d := distance(word, a, most); d <= most {
			best, most = a, d-1
		}
	}
	return best
}

// distance is how many letters must be put in, left out or changed to make a
// of b; anything above limit is as good as any other.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d > limit || -d > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// sortErrors puts mistakes in the order of the file.
func sortErrors(es Errors) {
	slices.SortStableFunc(es, func(a, b Error) int { return a.Line - b.Line })
}
