package main

import (
	"go/format"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `package sample

import "time"

const limit = 5 * time.Second

func f(a, b int, on bool) (n int) {
	if a < b && on {
		n++
	}
	switch {
	case a == b:
		n = min(a, 3)
		g()
	}
	for range b {
		continue
	}
	return n - 1
}
`

// TestMutantsOf checks that each kind of change is made, and only those.
func TestMutantsOf(t *testing.T) {
	found, err := mutantsOf("sample.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range found {
		before, after := m.lines()
		got = append(got, before+" => "+after)
		if _, err := format.Source(m.mutated()); err != nil {
			t.Errorf("%s is not Go: %v", m.key(), err)
		}
	}
	want := []string{
		"const limit = 5 * time.Second => const limit = 6 * time.Second",
		"const limit = 5 * time.Second => const limit = 5 / time.Second",
		"if a < b && on { => if !(a < b && on) {",
		"if a < b && on { => if a <= b && on {",
		"if a < b && on { => if a < b || on {",
		"n++ => {}",
		"n++ => n--",
		"case a == b: => case !(a == b):",
		"case a == b: => case a != b:",
		"n = min(a, 3) => {}",
		"n = min(a, 3) => n = max(a, 3)",
		"n = min(a, 3) => n = min(a, 4)",
		"g() => {}",
		"continue => {}",
		"return n - 1 => return n + 1",
		"return n - 1 => return n - 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestQuickTests checks that quick tests are found in what go test -v prints, and subtests
// are not taken for tests.
func TestQuickTests(t *testing.T) {
	out := "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/part (0.00s)\n--- PASS: TestSlow (1.25s)\n--- PASS: FuzzB (0.04s)\nPASS\n"
	if got, want := quickTests(out), []string{"TestA", "FuzzB"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEquivalentNeedsAReason checks the list of equivalent mutants: each paragraph begins
// with a reason.
func TestEquivalentNeedsAReason(t *testing.T) {
	name := filepath.Join(t.TempDir(), "equivalent.txt")
	read := func(text string) (map[string]bool, error) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readEquivalent(name)
	}
	if list, err := read("# why\na.go: x => y\na.go: y => z\n"); err != nil || len(list) != 2 {
		t.Errorf("got %v, %v, want two entries", list, err)
	}
	for _, text := range []string{"a.go: x => y\n", "# why\na.go: x => y\n\na.go: y => z\n"} {
		if _, err := read(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

// TestEquivalentMutantsExist checks that the list has no entry for code that has changed.
func TestEquivalentMutantsExist(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := candidates(root, ""); err != nil {
		t.Error(err)
	}
}
