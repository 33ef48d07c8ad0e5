package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// mutant is one small change of one file. It is a replacement of source text, so
// that the rest of the file and its comments stay as they are.
type mutant struct {
	file        string // path below the root of the module
	line        int
	start, end  int // offsets in the file
	replacement string
	source      []byte // of the whole file, unchanged
	number      int    // in the program that has many mutants: combine.go; zero: it is not there
}

// mutated returns the changed file.
func (m *mutant) mutated() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.replacement), m.source[m.end:])
}

// lines returns the lines of the file that change, before and after, without
// indentation. Line breaks within them are spaces.
func (m *mutant) lines() (before, after string) {
	from := bytes.LastIndexByte(m.source[:m.start], '\n') + 1
	to := len(m.source)
	if i := bytes.IndexByte(m.source[m.end:], '\n'); i >= 0 {
		to = m.end + i
	}
	oneLine := func(parts ...string) string { return strings.Join(strings.Fields(strings.Join(parts, "")), " ") }
	before = oneLine(string(m.source[from:to]))
	after = oneLine(string(m.source[from:m.start]), m.replacement, string(m.source[m.end:to]))
	return before, after
}

// key identifies the mutant in the list of equivalent mutants. It does not contain
// the line number, so that the list outlives changes elsewhere in the file.
func (m *mutant) key() string {
	before, after := m.lines()
	return m.file + ": " + before + " => " + after
}

// diff shows the mutant to a person.
func (m *mutant) diff() string {
	before, after := m.lines()
	return fmt.Sprintf("%s:%d\n  - %s\n  + %s\n", m.file, m.line, before, after)
}

// findMutants returns every mutant of the Go files of one folder, in order of file
// and position. Tests are not mutated.
func findMutants(root, folder string) ([]*mutant, error) {
	const need = packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
		packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo
	found, err := packages.Load(&packages.Config{Mode: need, Dir: root}, "./"+folder)
	if err != nil {
		return nil, fmt.Errorf("find mutants in %s: %w", folder, err)
	}
	var all []*mutant
	for _, p := range found {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("find mutants in %s: %w", folder, p.Errors[0])
		}
		for i, tree := range p.Syntax {
			source, err := os.ReadFile(p.CompiledGoFiles[i])
			if err != nil {
				return nil, err
			}
			f := &finder{file: filepath.Join(folder, filepath.Base(p.CompiledGoFiles[i])), source: source, files: p.Fset, types: p.TypesInfo}
			all = append(all, f.find(tree)...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("find mutants in %s: no Go files there", filepath.Join(root, folder))
	}
	return all, nil
}

// finder finds the mutants of one file.
type finder struct {
	file   string
	source []byte
	files  *token.FileSet
	types  *types.Info
	kept   map[ast.Expr]bool // numbers that are not changed: see keepNanosecond
	found  []*mutant
}

func (f *finder) find(tree *ast.File) []*mutant {
	f.kept = map[ast.Expr]bool{}
	ast.Inspect(tree, f.visit)
	slices.SortStableFunc(f.found, func(a, b *mutant) int { return a.start - b.start })
	return f.found
}

// keepNanosecond keeps 0 and 1 as they are, as limits of a time. Clocks and calls are coarser than the
// nanosecond by which the mutant would differ. Whether the limit itself belongs to the range is another mutant.
func (f *finder) keepNanosecond(limits ...ast.Expr) {
	for _, e := range limits {
		lit, ok := e.(*ast.BasicLit)
		if ok && (lit.Value == "0" || lit.Value == "1") && isTime(f.types.TypeOf(lit)) {
			f.kept[lit] = true
		}
	}
}

// isTime reports whether a type counts nanoseconds: time.Duration or sched.Time.
func isTime(t types.Type) bool {
	name, ok := t.(*types.Named)
	return ok && (name.Obj().Name() == "Duration" || name.Obj().Name() == "Time")
}

// replace adds the mutant in which the text of a node is another one.
func (f *finder) replace(from, to token.Pos, replacement string) {
	at := f.files.Position(from)
	f.found = append(f.found, &mutant{
		file: f.file, line: at.Line, start: at.Offset, end: f.files.Position(to).Offset, replacement: replacement, source: f.source,
	})
}

// negate adds the mutant in which a condition is its opposite.
func (f *finder) negate(cond ast.Expr) {
	if cond != nil {
		text := f.source[f.files.Position(cond.Pos()).Offset:f.files.Position(cond.End()).Offset]
		f.replace(cond.Pos(), cond.End(), "!("+string(text)+")")
	}
}

// operators maps an operator to those that replace it: a comparison to the same one
// with the other boundary, the rest to the opposite.
var operators = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.AND_NOT: token.AND,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
	token.OR_ASSIGN: token.AND_ASSIGN, token.AND_NOT_ASSIGN: token.AND_ASSIGN,
}

func (f *finder) operator(op token.Token, at token.Pos) {
	if other, ok := operators[op]; ok {
		f.replace(at, at+token.Pos(len(op.String())), other.String())
	}
}

// visit finds the mutants of one node. Imports, types and struct tags are left out.
func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec, *ast.StructType, *ast.ArrayType:
		return false
	case *ast.BinaryExpr:
		f.operator(n.Op, n.OpPos)
		switch n.Op {
		case token.LSS, token.LEQ, token.GTR, token.GEQ:
			f.keepNanosecond(n.X, n.Y)
		}
	case *ast.IncDecStmt:
		f.operator(n.Tok, n.TokPos)
	case *ast.AssignStmt:
		f.operator(n.Tok, n.TokPos)
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.SwitchStmt:
		if n.Tag == nil {
			f.negateCases(n.Body)
		}
	case *ast.BasicLit:
		f.literal(n)
	case *ast.Ident:
		if other, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
			f.replace(n.Pos(), n.End(), other)
		}
	case *ast.CallExpr:
		f.minMax(n)
	case *ast.BlockStmt:
		f.deletions(n.List)
	case *ast.CaseClause:
		f.deletions(n.Body)
	}
	return true
}

func (f *finder) negateCases(body *ast.BlockStmt) {
	for _, s := range body.List {
		for _, cond := range s.(*ast.CaseClause).List {
			f.negate(cond)
		}
	}
}

// literal adds the mutant in which a number is another one.
func (f *finder) literal(lit *ast.BasicLit) {
	switch {
	case f.kept[lit]:
	case lit.Kind == token.INT:
		other := lit.Value + "+1"
		if n, err := strconv.Atoi(lit.Value); err == nil {
			other = strconv.Itoa(n + 1)
		}
		f.replace(lit.Pos(), lit.End(), other)
	case lit.Kind == token.FLOAT:
		f.replace(lit.Pos(), lit.End(), "(2*"+lit.Value+")")
	}
}

// minMax adds the mutant in which min is max, or max is min.
func (f *finder) minMax(call *ast.CallExpr) {
	name, ok := call.Fun.(*ast.Ident)
	if !ok || name.Name != "min" && name.Name != "max" {
		return
	}
	f.keepNanosecond(call.Args...)
	other := map[string]string{"min": "max", "max": "min"}[name.Name]
	f.replace(name.Pos(), name.End(), other)
}

// deletions adds the mutants in which one simple statement is missing.
func (f *finder) deletions(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt:
		default:
			continue
		}
		f.replace(s.Pos(), s.End(), "{}")
	}
}
