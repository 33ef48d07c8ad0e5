package yamlfile

import (
	"fmt"
	"strings"
)

// maxErrors is how many mistakes are reported at a time.
const maxErrors = 10

// Error is one mistake in a file.
type Error struct {
	File    string
	Line    int    // zero: the whole file
	Field   string // such as clients[2].arrival; empty: the whole file
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

// Errors is the mistakes in a file, in the order of the file. The file may have more
// mistakes if there are maxErrors.
type Errors []Error

func (es Errors) Error() string {
	if len(es) == 1 {
		return es[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d mistakes", len(es))
	if len(es) == maxErrors {
		b.WriteString(", and perhaps more")
	}
	b.WriteString(":")
	for _, e := range es {
		b.WriteString("\n  " + e.Error())
	}
	return b.String()
}

// OneOf lists the allowed words, and the one that word is perhaps a misspelling of.
func OneOf(word string, allowed []string) string {
	if near := Nearest(word, allowed); near != "" {
		return fmt.Sprintf("did you mean %s? There are: %s", near, strings.Join(allowed, ", "))
	}
	return "there are: " + strings.Join(allowed, ", ")
}

// Nearest returns the allowed word that is at most two letters different from word,
// or an empty string.
func Nearest(word string, allowed []string) string {
	best, most := "", min(2, len(word)/2)
	for _, a := range allowed {
		if d := distance(word, a, most); d <= most {
			best, most = a, d-1
		}
	}
	return best
}

// distance returns how many letters must be inserted, deleted or changed to turn a
// into b, or any number above limit if it is more than limit.
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
