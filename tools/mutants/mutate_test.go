package main

import (
	"fmt"
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

func g() {}

func waits(d time.Duration) bool {
	return max(d, 1) > 0
}
`

// mutantsOfSample writes a module whose package policy is the sample, and returns its mutants.
func mutantsOfSample(t *testing.T) []*mutant {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module sample\n\ngo 1.26\n", "policy/sample.go": sample} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := findMutants(root, "policy")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestFindMutants checks that each kind of change is made, and only those.
func TestFindMutants(t *testing.T) {
	var got []string
	for _, m := range mutantsOfSample(t) {
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
		"return max(d, 1) > 0 => return min(d, 1) > 0",
		"return max(d, 1) > 0 => return max(d, 1) >= 0",
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

// TestCombine checks that a file with several mutants is Go, and that the lines of an error
// lead to the mutant that it is in.
func TestCombine(t *testing.T) {
	found := mutantsOfSample(t)
	for i, m := range found {
		m.number = i + 1
	}
	c, err := combine(found)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := format.Source(c.text); err != nil {
		t.Fatalf("it is not Go: %v\n%s", err, c.text)
	}
	if got, want := len(c.bodies), len(found)-2; got != want {
		t.Errorf("got %d bodies, want %d: all but those of the constant", got, want)
	}
	lines := strings.Split(string(c.text), "\n")
	for _, b := range c.bodies {
		_, after := b.mutant.lines()
		text := strings.Join(strings.Fields(strings.Join(lines[b.from-1:b.to], "\n")), " ")
		if !strings.Contains(text, after) {
			t.Errorf("mutant %d: the lines %d to %d do not have %q", b.mutant.number, b.from, b.to, after)
		}
		out := fmt.Sprintf("# giveway/policy\npolicy/sample.go:%d:3: declared and not used: n\n", b.from+1)
		if got := refusedMutants(out, map[string]*combined{"policy/sample.go": c}); len(got) != 1 || got[0] != b.mutant {
			t.Errorf("an error in mutant %d is taken for one of %d others", b.mutant.number, len(got))
		}
	}
}
