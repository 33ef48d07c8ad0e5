package giveway_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestHelpListsAllTargets checks that make help lists every target with a description.
func TestHelpListsAllTargets(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), "make", "help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	for _, target := range regexp.MustCompile(`(?m)^(\S+):.* ## `).FindAllSubmatch(makefile, -1) {
		if !strings.Contains(string(help), "make "+string(target[1])+" ") {
			t.Errorf("make help does not list %s", target[1])
		}
	}
}

// TestNoRaceHasNoGoroutines checks the packages that make test does not run under the
// race detector (NO_RACE in the Makefile): their code must start no goroutine.
func TestNoRaceHasNoGoroutines(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^NO_RACE := (.+)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile does not set NO_RACE")
	}
	noRace := regexp.MustCompile(strings.ReplaceAll(string(line[1]), "$$", "$"))
	files, found := token.NewFileSet(), 0
	err = fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return skipFolder(os.DirFS("."), name)
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || !noRace.MatchString(path.Join(module, path.Dir(name))):
			return nil
		}
		found++
		f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			_, starts := n.(*ast.GoStmt)
			if method, ok := n.(*ast.SelectorExpr); ok && method.Sel.Name == "Go" { // of sync.WaitGroup
				starts = true
			}
			if starts {
				t.Errorf("%s starts a goroutine: remove %s from NO_RACE in the Makefile", files.Position(n.Pos()), path.Dir(name))
			}
			return true
		})
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("read %d files of packages in NO_RACE: %v", found, err)
	}
}
