package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Most of the time would go into building the tests once for each mutant. So all mutants
// inside functions are built into the same program: a function with mutants has a copy of
// its body for each of them, and a variable says which mutant is active.

// activeMutant is the variable that selects the copy, in a file that is added to each folder.
// Zero is the unchanged code.
const activeMutant = `package %s

import (
	"os"
	"strconv"
)

var activeMutant, _ = strconv.Atoi(os.Getenv("ACTIVE_MUTANT"))
`

// combined is a file with the bodies of several mutants.
type combined struct {
	text   []byte
	bodies []body
}

// body is where the copy for a mutant is.
type body struct {
	from, to int // lines
	mutant   *mutant
}

// combine returns the file that all these mutants change with all of their bodies, each
// under its mutant's number. Mutants outside of functions are left out.
func combine(mutants []*mutant) (*combined, error) {
	c, source, files := &combined{}, mutants[0].source, token.NewFileSet()
	tree, err := parser.ParseFile(files, mutants[0].file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	end := 0
	for _, decl := range tree.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		from, to := files.Position(f.Body.Lbrace).Offset, files.Position(f.Body.Rbrace).Offset+1
		inside := slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return m.start < from || m.end > to })
		if len(inside) == 0 {
			continue
		}
		c.add(string(source[end:from]) + "{ switch activeMutant {\n")
		for _, m := range inside {
			c.add(fmt.Sprintf("case %d:\n", m.number))
			first := c.line()
			c.add(string(source[from:m.start]) + m.replacement + string(source[m.end:to]) + "\n")
			c.bodies = append(c.bodies, body{first, c.line(), m})
		}
		c.add("default:\n" + string(source[from:to]) + "\n}")
		if f.Type.Results != nil {
			c.add("\npanic(\"no copy of the body has returned\")")
		}
		c.add(" }")
		end = to
	}
	c.add(string(source[end:]))
	return c, nil
}

func (c *combined) add(text string) { c.text = append(c.text, text...) }

// line returns the number of the last line.
func (c *combined) line() int { return 1 + bytes.Count(c.text, []byte("\n")) }

// combineAll numbers the mutants and builds the tests of all folders with them. It returns
// the mutants without those that the compiler refuses. The numbers of those that are outside
// of functions, and must be built alone, are zero.
func (t *tester) combineAll(all []*mutant) ([]*mutant, error) {
	for i, m := range all {
		m.number = i + 1
	}
	for {
		refused, err := t.tryCombined(all)
		if err != nil || len(refused) == 0 {
			return all, err
		}
		all = slices.DeleteFunc(all, func(m *mutant) bool { return slices.Contains(refused, m) })
	}
}

// tryCombined builds the tests with the mutants. It returns those that the compiler refuses.
func (t *tester) tryCombined(all []*mutant) (refused []*mutant, err error) {
	files := map[string]*combined{}
	replace := map[string]string{}
	for _, folder := range folders {
		extra := filepath.Join(t.dir, folder+"_active.go")
		if err := os.WriteFile(extra, fmt.Appendf(nil, activeMutant, folder), 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(t.root, folder, "active_mutant.go")] = extra
	}
	byFile := map[string][]*mutant{}
	for _, m := range all {
		byFile[m.file] = append(byFile[m.file], m)
	}
	for file, mutants := range byFile {
		c, err := combine(mutants)
		if err != nil {
			return nil, err
		}
		name := filepath.Dir(file) + "_" + filepath.Base(file)
		if err := os.WriteFile(filepath.Join(t.dir, name), c.text, 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(t.root, file)] = filepath.Join(t.dir, name)
		files[file] = c
		for _, m := range mutants {
			if !slices.ContainsFunc(c.bodies, func(b body) bool { return b.mutant == m }) {
				m.number = 0
			}
		}
	}
	overlay, err := t.overlay(replace)
	if err != nil {
		return nil, err
	}
	for _, folder := range t.folders() {
		out, err := t.build(overlay, folder)
		if err == nil {
			continue
		}
		if refused = refusedMutants(out, files); len(refused) == 0 {
			return nil, fmt.Errorf("build the tests with all mutants: %w\n%s", err, out)
		}
		return refused, nil
	}
	return nil, nil
}

// compileError matches the position of an error, in a file of a folder or in its replacement.
var compileError = regexp.MustCompile(`(sched|policy)[/_](\w+\.go):(\d+):\d+: `)

// refusedMutants returns the mutants in whose bodies the compiler found errors.
func refusedMutants(out string, files map[string]*combined) (refused []*mutant) {
	for _, e := range compileError.FindAllStringSubmatch(out, -1) {
		c := files[e[1]+"/"+e[2]]
		if c == nil {
			continue
		}
		line, _ := strconv.Atoi(e[3]) // digits
		for _, b := range c.bodies {
			if b.from <= line && line <= b.to && !slices.Contains(refused, b.mutant) {
				refused = append(refused, b.mutant)
			}
		}
	}
	return refused
}
