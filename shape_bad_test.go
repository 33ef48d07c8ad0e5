package giveway_test

import (
	"strings"
	"testing"
	"testing/fstest"
)

// TestShapeViolationsAreFound gives survey small trees that break one rule each, and some
// that break none.
func TestShapeViolationsAreFound(t *testing.T) {
	tests := []struct {
		name string
		tree string // "-- path --" begins a file, as in txtar
		want string // part of the one expected problem; empty for none
	}{
		{"unknown package", `
-- internal/surprise/a.go --
// Package surprise is new.
package surprise
`, "internal/surprise is not in mayImport"},
		{"our package out of bounds", `
-- internal/hal/a.go --
// Package hal is here.
package hal
import _ "github.com/giveway/giveway/policy"
`, "internal/hal may not import policy"},
		{"our package within bounds", `
-- policy/a.go --
// Package policy is here.
package policy
import "github.com/giveway/giveway/sched"
var _ sched.Time
-- sched/a.go --
// Package sched is here.
package sched
type Time int64
`, ""},
		{"cli imports anything of ours", `
-- internal/cli/a.go --
// Package cli is here.
package cli
import (
	_ "github.com/giveway/giveway/internal/sim"
	_ "github.com/spf13/cobra/doc"
)
`, ""},
		{"but not cmd", `
-- internal/cli/a.go --
// Package cli is here.
package cli
import _ "github.com/giveway/giveway/cmd/giveway"
`, "internal/cli may not import cmd/giveway"},
		{"other people's module", `
-- internal/loop/a.go --
// Package node is here.
package node
import _ "github.com/spf13/cobra"
`, "internal/loop may not depend on github.com/spf13/cobra"},
		{"a name that only begins like an allowed one", `
-- internal/cli/a.go --
// Package cli is here.
package cli
import _ "github.com/spf13/cobra2"
`, "internal/cli may not depend on github.com/spf13/cobra2"},
		{"other people's module in a test", `
-- sched/a_test.go --
package sched
import _ "example.com/assert"
`, "sched may not depend on example.com/assert"},
		{"our own module in a test", `
-- sched/a_test.go --
package sched_test
import (
	_ "github.com/giveway/giveway/policy"
	_ "os"
)
`, ""},
		{"cgo", `
-- internal/hal/a.go --
// Package hal is here.
package hal
import "C"
`, "without cgo"},
		{"unsafe", `
-- internal/hal/a.go --
// Package hal is here.
package hal
import _ "unsafe"
`, "unsafe belongs in a file named *_unsafe.go"},
		{"unsafe in its place", `
-- internal/hal/page_unsafe.go --
// Package hal is here.
package hal
import _ "unsafe"
-- internal/hal/page_unsafe_test.go --
package hal
import _ "unsafe"
`, ""},
		{"unsafe in a pure package", `
-- sched/page_unsafe.go --
// Package sched is here.
package sched
import _ "unsafe"
`, "sched is pure and may not import unsafe"},
		{"no package comment", `
-- internal/stats/a.go --
package stats
`, `internal/stats: no package comment that begins "Package stats "`},
		{"licence taken for a comment", `
-- cmd/giveway/main.go --
// Copyright someone.
package main
`, `no package comment that begins "Command giveway "`},
		{"left out", `
-- tools/go.mod --
module tools
-- tools/a.go --
package surprise
-- sched/testdata/a.go --
package surprise
-- .cache/a.go --
package surprise
`, ""},

		{"impure import", `
-- sched/a.go --
// Package sched is here.
package sched
import _ "math/rand/v2"
`, "sched is pure and may not import math/rand/v2"},
		{"JSON in the core", `
-- sched/a.go --
// Package sched is here.
package sched
import _ "encoding/json"
`, "sched is pure and may not import encoding/json"},
		{"JSON in a policy", `
-- policy/a.go --
// Package policy is here.
package policy
import _ "encoding/json"
`, ""},
		{"file for one machine", `
-- sched/a.go --
//go:build linux

// Package sched is here.
package sched
`, "must not have files with build constraints"},
		{"does not compile", inSched(``, `return nowhere`), "does not compile"},
		{"clock", inSched(`import "time"`, `time.Sleep(1)`), "time.Sleep in a pure package"},
		{"clock under another name", inSched(`import wall "time"`, `_ = wall.Now()`), "time.Now in a pure package"},
		{"clock without a name", inSched(`import . "time"`, `_ = Now()`), "time.Now in a pure package"},
		{"clock as a value", inSched(`import "time"`, `_ = time.Since`), "time.Since in a pure package"},
		{"comparing times", inSched(`import "time"`, `_ = time.Unix(1, 0).After(time.Time{})`), ""},
		{"terminal", inSched(`import "fmt"`, `fmt.Println()`), "fmt.Println in a pure package"},
		{"text", inSched(`import "fmt"`, `_ = fmt.Sprintln()`), ""},
		{"built-in print", inSched(``, `println()`), "println in a pure package"},
		{"goroutine", inSched(``, `go f()`), "goroutine in a pure package"},
		{"channel", inSched(``, `_ = make(chan int)`), "channel in a pure package"},
		{"select", inSched(``, `select {}`), "select in a pure package"},

		{"map", inSched(``, `for range map[int]int{} {}`), "loop over a map"},
		{"named map", inSched(`type set map[int]bool`, `for range (set{}) {}`), "loop over a map"},
		{"map as a parameter", inSched(`func g[M ~map[int]int](m M) { for range m {} }`, ``), "loop over a map"},
		{"slice", inSched(``, `for range []int{} {}`), ""},
		{"excused map", inSched(``, "//shape:unordered a sum\nfor range map[int]int{} {}"), ""},
		{"excused on its line", inSched(``, "for range map[int]int{} {} //shape:unordered a sum"), ""},
		{"excused without a reason", inSched(``, "//shape:unordered\nfor range map[int]int{} {}"), "without a reason"},
		{"excuse too far away", inSched(``, "//shape:unordered a sum\n\nfor range map[int]int{} {}"), "loop over a map"},
		{"iterator", inSched(`import "maps"`, `for range maps.Keys(map[int]int{}) {}`), "iterator over a map"},
		{"iterator of stated type", inSched(`import "maps"`, `for range maps.Keys[map[int]int](nil) {}`), "iterator over a map"},
		{"iterator sorted at once", inSched("import (\"maps\"\n\"slices\")", `_ = slices.Sorted(maps.Keys(map[int]int{}))`), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := survey(t, unpack(tt.tree))
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("got problems, want none:\n%s", strings.Join(got, "\n"))
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one problem with %q", got, tt.want)
			}
		})
	}
}

// inSched is a package sched with the given declarations and one function.
func inSched(declarations, body string) string {
	return "-- sched/a.go --\n// Package sched is here.\npackage sched\n" + declarations + "\nfunc f() {\n" + body + "\n}\n"
}

func unpack(tree string) fstest.MapFS {
	files := fstest.MapFS{}
	for file := range strings.SplitSeq("\n"+tree, "\n-- ") {
		if name, text, ok := strings.Cut(file, " --\n"); ok {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return files
}
