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
	where := e.File
	if e.Line > 0 {
		where += fmt.Sprintf(":%d", e.Line)
	}
	if e.Field != "" {
		where += ": " + e.Field
	}
	return where + ": " + e.Problem
}

// Errors is the mistakes in a file, in the order of the file. The file may have more
// mistakes if there are maxErrors.
type Errors []Error

func (es Errors) Error() string {
	if len(es) == 1 {
		return es[0].Error()
	}
	text := fmt.Sprintf("%d mistakes:", len(es))
	if len(es) == maxErrors {
		text = fmt.Sprintf("%d mistakes, and perhaps more:", len(es))
	}
	for _, e := range es {
		text += "\n  " + e.Error()
	}
	return text
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
