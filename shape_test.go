package giveway_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/giveway/giveway"

// mayImport lists, for each package, the packages of this module that it may import.
// Do not widen it to make a build pass; the commit must say why the shape changes.
//
// Tests may import any package of this module.
var mayImport = map[string][]string{
	".":      {},
	"sched":  {},
	"shim":   {},
	"policy": {"sched"},
	"attr":   {"sched", "internal/format"},
	"api":    {"attr"},
	"client": {"api"},
	"hint":   {"api", "attr", "client", "internal/shim/pageabi", "internal/shim/pageclient"},
	"queue":  {"internal/shim/pageabi", "internal/shim/pageclient", "sched"},
	"amd":    {},
	"python": {},

	"internal/proc":                {},
	"internal/quota":               {},
	"internal/userdb":              {"internal/proc"},
	"internal/stats":               {},
	"internal/safepath":            {},
	"internal/pool":                {"internal/safepath"},
	"internal/pool/mpstest":        {},
	"internal/sandbox":             {},
	"internal/format":              {},
	"internal/progress":            {},
	"internal/htmlreport":          {"internal/format", "internal/stats"},
	"internal/htmlreport/pagetest": {},
	"internal/fusedev":             {},
	"internal/drivertest":          {"sched", "internal/sim"},
	"internal/hal":                 {"sched", "internal/proc", "internal/stats"},
	"internal/hal/haltest":         {"sched", "internal/hal", "internal/proc"},
	"internal/heaptest":            {},
	"internal/loop":                {"sched"},
	"internal/journal":             {"sched", "internal/proc"},
	"internal/extpolicy":           {"sched", "policy", "internal/proc"},
	"internal/guardian":            {"sched", "internal/hal", "internal/journal", "internal/proc"},

	"internal/nvidia":               {"sched", "internal/hal", "internal/nvidia/discover", "internal/nvidia/nvrm", "internal/nvidia/nvtrace", "internal/proc"},
	"internal/nvidia/nvrm":          {},
	"internal/nvidia/nvrm/nvrmtest": {"internal/drivertest", "internal/fusedev", "internal/nvidia/nvrm", "internal/sim"},
	"internal/nvidia/nvtrace":       {"sched", "internal/hal", "internal/nvidia/nvrm", "internal/stats"},
	"internal/nvidia/discover":      {"internal/hal", "internal/nvidia/nvrm", "internal/pool", "internal/proc", "internal/quota"},

	"internal/amd":              {"sched", "internal/hal", "internal/proc", "internal/amd/kfd"},
	"internal/amd/kfd":          {},
	"internal/amd/kfd/kfdtest":  {"internal/drivertest", "internal/fusedev", "internal/amd/kfd", "internal/sim"},
	"internal/amd/lab/amdbench": {"sched", "internal/format", "internal/htmlreport", "internal/sim", "internal/stats"},
	"internal/amd/lab/hqd":      {},

	"internal/shim":            {"sched", "internal/hal", "internal/proc", "internal/quota", "internal/server", "internal/shim/pageabi", "internal/shim/shimpage"},
	"internal/shim/pageabi":    {},
	"internal/shim/shimpage":   {"internal/shim/pageabi", "internal/stats"},
	"internal/shim/pageclient": {"client", "internal/shim/pageabi"},
	"internal/shim/pagetest":   {"internal/shim/pageabi", "internal/shim/shimpage"},

	"internal/sim":         {"sched", "policy", "internal/hal", "internal/loop", "internal/journal", "internal/stats"},
	"internal/sim/live":    {"sched", "internal/hal", "internal/proc", "internal/scenario", "internal/shim/pageabi", "internal/sim"},
	"internal/yamlfile":    {"internal/format"},
	"internal/scenario":    {"sched", "policy", "attr", "internal/format", "internal/sim", "internal/stats", "internal/yamlfile"},
	"internal/trace":       {"api", "sched", "internal/scenario", "internal/sim"},
	"internal/replay":      {"sched", "policy"},
	"internal/analysis":    {"sched", "internal/format", "internal/scenario", "internal/sim", "internal/stats"},
	"internal/report":      {"sched", "internal/analysis", "internal/format", "internal/htmlreport", "internal/scenario", "internal/sim", "internal/stats"},
	"internal/clib":        {},
	"internal/gpuwork":     {"internal/stats"},
	"internal/cuda":        {"internal/clib", "internal/gpuwork"},
	"internal/hip":         {"internal/clib", "internal/gpuwork"},
	"internal/hip/hiptest": {},
	"internal/bench":       {"internal/format", "internal/htmlreport", "internal/progress", "internal/stats"},
	"internal/record":      {"sched", "api", "internal/hal"},
	"internal/metrics":     {"api", "attr", "sched"},
	"internal/server":      {"api", "attr", "internal/metrics", "internal/proc", "internal/quota", "internal/record", "internal/safepath", "internal/shim/pageabi", "internal/userdb"},
	"internal/config":      {"sched", "policy", "attr", "api", "internal/metrics", "internal/proc", "internal/safepath", "internal/yamlfile", "internal/extpolicy"},
	"internal/backends": {
		"internal/config", "internal/guardian", "internal/hal", "internal/journal", "internal/proc", "internal/scenario",
		"internal/shim", "internal/nvidia", "internal/amd", "internal/sim/live",
	},
	"internal/daemon": { // no vendor: internal/backends names them
		"api", "attr", "policy", "sched", "internal/config", "internal/extpolicy", "internal/guardian", "internal/hal", "internal/journal", "internal/loop",
		"internal/format", "internal/metrics", "internal/proc", "internal/quota", "internal/record", "internal/replay", "internal/server", "internal/stats", "internal/userdb",
	},
	"internal/describe":  {"api", "attr", "internal/format", "policy", "sched"},
	"internal/top":       {"api", "attr", "client", "internal/describe", "internal/format", "sched"},
	"internal/dashboard": {"api", "client"},
	"internal/e2e":       {},
	"packaging":          {},
	"internal/cli":       {anyOfOurs},
	"cmd/giveway":        {"internal/cli"},
	"cmd/giveway-bench":  {"internal/amd", "internal/bench", "internal/clib", "internal/cuda", "internal/gpuwork", "internal/hip", "internal/progress", "internal/shim/pageabi", "internal/stats"},
}

const anyOfOurs = "*" // every package of this module except cmd/

// mayDepend lists the modules of third parties that each package may import. Each has a
// row in docs/DEPENDENCIES.md.
var mayDepend = map[string][]string{
	"packaging":                     {"golang.org/x/sys"},
	"internal/cli":                  {"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys"},
	"internal/top":                  {"charm.land/bubbletea/v2"},
	"internal/clib":                 {"github.com/ebitengine/purego"},
	"cmd/giveway-bench":             {"golang.org/x/sys"},
	"internal/nvidia/nvrm":          {"golang.org/x/sys", "gvisor.dev/gvisor"},
	"internal/sim/live":             {"golang.org/x/sys"},
	"internal/fusedev":              {"golang.org/x/sys"},
	"internal/nvidia/nvrm/nvrmtest": {"golang.org/x/sys", "gvisor.dev/gvisor"},
	"internal/nvidia/nvtrace":       {"golang.org/x/sys", "gvisor.dev/gvisor"},
	"internal/amd/kfd":              {"golang.org/x/sys"},
	"internal/amd/kfd/kfdtest":      {"golang.org/x/sys"},
	"internal/amd":                  {"golang.org/x/sys"},
	"internal/yamlfile":             {"go.yaml.in/yaml/v3"},
	"internal/nvidia/discover":      {"github.com/cilium/ebpf", "golang.org/x/sys"},
	"internal/guardian":             {"golang.org/x/sys"},
	"internal/daemon":               {"golang.org/x/sys"},
	"internal/shim":                 {"golang.org/x/sys"},
	"internal/shim/shimpage":        {"golang.org/x/sys"},
	"internal/proc":                 {"golang.org/x/sys"},
	"internal/progress":             {"golang.org/x/sys"},
	"internal/backends":             {"golang.org/x/sys"},
	"internal/shim/pageclient":      {"golang.org/x/sys"},
	"internal/shim/pageabi":         {"golang.org/x/sys"},
	"internal/shim/pagetest":        {"golang.org/x/sys"},
	"internal/server":               {"golang.org/x/sys"},
	"internal/safepath":             {"golang.org/x/sys"},
	"internal/pool":                 {"golang.org/x/sys"},
	"internal/pool/mpstest":         {"golang.org/x/sys"},
	"internal/sandbox":              {"golang.org/x/sys"},
}

// testsMayDepend is the same for the tests of every package.
var testsMayDepend = []string{}

// pure lists the packages that compute the same output from the same input, and the
// packages of the standard library that they may use.
var pure = map[string][]string{
	"sched":  pureStd,
	"attr":   append(slices.Clone(pureStd), "encoding/json", "unicode"),
	"policy": append(slices.Clone(pureStd), "encoding/json"),
}

var pureStd = []string{
	"cmp", "errors", "fmt", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time",
}

// impure lists the functions of those packages that read the clock, the machine or the
// terminal.
var impure = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// unordered, followed by a reason, on the line of a loop over a map or the line above,
// declares that the order does not matter there.
const unordered = "//shape:unordered"

func TestShape(t *testing.T) {
	for _, p := range survey(t, os.DirFS(".")) {
		t.Error(p)
	}
}

// TestDependenciesAreExplained checks that docs/DEPENDENCIES.md has each module that is
// imported and each tool that is run, with its version.
func TestDependenciesAreExplained(t *testing.T) {
	doc, err := os.ReadFile("docs/DEPENDENCIES.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"go.mod", "tools/go.mod", "tools/helmcheck/go.mod", "k8s/go.mod", "k8s/cluster/hyper/go.mod", "k8s/cluster/etcd/go.mod"} {
		out, err := exec.Command("go", "mod", "edit", "-json", file).Output()
		if err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		var mod struct {
			Require []struct {
				Path, Version string
				Indirect      bool
			}
			Tool []struct{ Path string }
		}
		if err := json.Unmarshal(out, &mod); err != nil {
			t.Fatal(err)
		}
		for _, r := range mod.Require {
			isTool := slices.ContainsFunc(mod.Tool, func(tool struct{ Path string }) bool { return within(tool.Path, r.Path) })
			line := fmt.Sprintf("| `%s` %s |", r.Path, r.Version)
			if ours := r.Path == "github.com/giveway/giveway"; !ours && (isTool || !r.Indirect) && !strings.Contains(string(doc), line) {
				t.Errorf("%s requires %s %s: docs/DEPENDENCIES.md has no row that begins %q", file, r.Path, r.Version, line)
			}
		}
	}
}

// shape holds what survey has read, and the problems it found.
type shape struct {
	fset     *token.FileSet
	packages map[string][]*ast.File // by folder, tests left out
	checked  map[string]*types.Package
	std      types.Importer
	problems []string
}

// survey reads every Go file of the module under root and returns the violations of the
// rules above, sorted by position.
func survey(t *testing.T, root fs.FS) []string {
	t.Helper()
	s := &shape{
		fset:     token.NewFileSet(),
		packages: map[string][]*ast.File{},
		checked:  map[string]*types.Package{},
		std:      importer.Default(),
	}
	if err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		return s.readFile(root, name)
	}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(s.packages)) {
		s.checkComment(dir)
		if pure[dir] != nil {
			s.checkPure(dir)
		}
	}
	slices.Sort(s.problems)
	return s.problems
}

// skipFolder skips the folders that the go command excludes from ./... too.
func skipFolder(root fs.FS, name string) error {
	base := path.Base(name)
	if name == "." {
		return nil
	}
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func (s *shape) report(where any, format string, args ...any) {
	if pos, ok := where.(token.Pos); ok {
		p := s.fset.Position(pos)
		where = fmt.Sprintf("%s:%d", p.Filename, p.Line)
	}
	s.problems = append(s.problems, fmt.Sprintf("%v: ", where)+fmt.Sprintf(format, args...))
}

// readFile parses one file, checks its imports, and keeps it unless it is a test.
func (s *shape) readFile(root fs.FS, name string) error {
	src, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(s.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, isTest := path.Dir(name), strings.HasSuffix(name, "_test.go")
	if _, known := mayImport[dir]; !known {
		s.report(f.Package, "package %s is not in mayImport", dir)
	}
	for _, spec := range f.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if wrong := importProblem(name, dir, imported, isTest); wrong != "" {
			s.report(spec.Pos(), "%s", wrong)
		}
	}
	if !isTest {
		s.packages[dir] = append(s.packages[dir], f)
	}
	return nil
}

// ourPackage returns the folder of a package of this module.
func ourPackage(imported string) (dir string, isOurs bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// importProblem returns what is wrong with one import, or an empty string.
func importProblem(file, dir, imported string, isTest bool) string {
	own, isOurs := ourPackage(imported)
	first, _, _ := strings.Cut(imported, "/")
	mayUse := func(module string) bool { return within(imported, module) }
	switch {
	case imported == "C":
		return "the program is built without cgo"
	case imported == "unsafe":
		if stem := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test"); !strings.HasSuffix(stem, "_unsafe") {
			return "unsafe belongs in a file named *_unsafe.go"
		}
	case isOurs && !isTest:
		all := slices.Contains(mayImport[dir], anyOfOurs) && !within(own, "cmd")
		if !all && !slices.Contains(mayImport[dir], own) {
			return fmt.Sprintf("%s may not import %s", dir, own)
		}
	case !isOurs && strings.Contains(first, "."):
		if !slices.ContainsFunc(mayDepend[dir], mayUse) && !(isTest && slices.ContainsFunc(testsMayDepend, mayUse)) {
			return fmt.Sprintf("%s may not depend on %s", dir, imported)
		}
	}
	if std, isPure := pure[dir]; isPure && !isTest && !isOurs && !slices.Contains(std, imported) {
		return fmt.Sprintf("%s is pure and may not import %s", dir, imported)
	}
	return ""
}

// within reports whether name is parent or lies below it.
func within(name, parent string) bool {
	return name == parent || strings.HasPrefix(name, parent+"/")
}

func (s *shape) checkComment(dir string) {
	name := s.packages[dir][0].Name.Name
	want := "Package " + name + " "
	if name == "main" {
		want = "Command " + path.Base(dir) + " "
	}
	if !slices.ContainsFunc(s.packages[dir], func(f *ast.File) bool { return strings.HasPrefix(f.Doc.Text(), want) }) {
		s.report(dir, "no package comment that begins %q", want)
	}
}

// checkPure inspects the functions of a pure package. It uses types, not names, so that
// neither a renamed import nor a named map type hides a violation.
func (s *shape) checkPure(dir string) {
	for _, f := range s.packages[dir] {
		if slices.ContainsFunc(f.Comments, isConstraint) {
			s.report(f.Package, "%s is pure and must not have files with build constraints", dir)
		}
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if _, err := s.check(dir, info); err != nil {
		s.report(dir, "cannot be checked because it does not compile: %v", err)
		return
	}
	for _, f := range s.packages[dir] {
		excused := s.excuses(f)
		sorted := map[ast.Expr]bool{} // iterators over maps whose result is sorted at once
		ast.Inspect(f, func(n ast.Node) bool {
			s.checkNode(n, info)
			s.checkOrder(n, info, excused, sorted)
			return true
		})
	}
}

func isConstraint(g *ast.CommentGroup) bool {
	return slices.ContainsFunc(g.List, func(c *ast.Comment) bool { return constraint.IsGoBuild(c.Text) })
}

// check type-checks one package of the module, and those that it imports.
func (s *shape) check(dir string, info *types.Info) (*types.Package, error) {
	conf := types.Config{Importer: importFunc(func(name string) (*types.Package, error) {
		own, isOurs := ourPackage(name)
		if !isOurs {
			return s.std.Import(name)
		}
		if p := s.checked[own]; p != nil {
			return p, nil
		}
		if s.packages[own] == nil {
			return nil, fmt.Errorf("no package %s", own)
		}
		return s.check(own, nil)
	})}
	p, err := conf.Check(module+"/"+dir, s.fset, s.packages[dir], info)
	s.checked[dir] = p
	return p, err
}

type importFunc func(string) (*types.Package, error)

func (f importFunc) Import(name string) (*types.Package, error) { return f(name) }

// checkNode reports goroutines, channels, and calls of impure functions.
func (s *shape) checkNode(n ast.Node, info *types.Info) {
	switch n := n.(type) {
	case *ast.GoStmt:
		s.report(n.Pos(), "goroutine in a pure package")
	case *ast.SelectStmt:
		s.report(n.Pos(), "select in a pure package")
	case *ast.ChanType:
		s.report(n.Pos(), "channel in a pure package")
	case *ast.Ident:
		obj := info.Uses[n]
		if b, ok := obj.(*types.Builtin); ok && strings.HasPrefix(b.Name(), "print") {
			s.report(n.Pos(), "%s in a pure package", b.Name())
		}
		// Methods have no parent scope: Time.After compares, time.After waits.
		if obj != nil && obj.Pkg() != nil && obj.Parent() == obj.Pkg().Scope() && slices.Contains(impure[obj.Pkg().Path()], obj.Name()) {
			s.report(n.Pos(), "%s.%s in a pure package", obj.Pkg().Path(), obj.Name())
		}
	}
}

// checkOrder reports loops over maps, whose order differs from run to run.
// sorted collects the iterators whose result is sorted; their parents are visited first.
func (s *shape) checkOrder(n ast.Node, info *types.Info, excused map[int]bool, sorted map[ast.Expr]bool) {
	hint := "sort the keys, or give a reason why the order does not matter: " + unordered + " REASON"
	switch n := n.(type) {
	case *ast.RangeStmt:
		if _, isMap := underlying(info.TypeOf(n.X)).(*types.Map); isMap && !excused[s.line(n)] {
			s.report(n.Pos(), "loop over a map in a pure package: %s", hint)
		}
	case *ast.CallExpr:
		switch callee(n, info) {
		case "slices.Sorted", "slices.SortedFunc", "maps.Collect":
			sorted[n.Args[0]] = true
		case "maps.All", "maps.Keys", "maps.Values":
			if !sorted[n] && !excused[s.line(n)] {
				s.report(n.Pos(), "iterator over a map in a pure package: %s", hint)
			}
		}
	}
}

// underlying resolves named types, and type parameters with one core type.
func underlying(t types.Type) types.Type {
	if p, ok := types.Unalias(t).(*types.TypeParam); ok {
		constraint := p.Constraint().Underlying().(*types.Interface)
		for i := range constraint.NumEmbeddeds() {
			if u, ok := constraint.EmbeddedType(i).(*types.Union); ok && u.Len() > 0 {
				return u.Term(0).Type().Underlying()
			}
		}
	}
	return t.Underlying()
}

// callee returns the name of the called function, with its package's path.
func callee(call *ast.CallExpr, info *types.Info) string {
	fun := ast.Unparen(call.Fun)
	switch x := fun.(type) { // drop type arguments
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	id, _ := fun.(*ast.Ident)
	if sel, ok := fun.(*ast.SelectorExpr); ok {
		id = sel.Sel
	}
	if f, ok := info.Uses[id].(*types.Func); ok {
		return f.FullName()
	}
	return ""
}

func (s *shape) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// excuses returns the lines that an excuse with a reason covers: its own and
// the next.
func (s *shape) excuses(f *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.Comments {
		for _, c := range g.List {
			reason, ok := strings.CutPrefix(c.Text, unordered)
			if !ok {
				continue
			}
			if strings.TrimSpace(reason) == "" {
				s.report(c.Pos(), "%s without a reason", unordered)
			}
			lines[s.line(c)], lines[s.line(c)+1] = true, true
		}
	}
	return lines
}
