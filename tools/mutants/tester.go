package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A mutant may allocate or run without end. Its tests fail at these limits. Processor time is
// limited by what the unchanged code needs, so that a busy machine does not make mutants look
// noticed.
const (
	maxMemory = 6 << 30 // bytes of address space
	maxWall   = 2 * time.Hour
	moreCPU   = 4 // times what the unchanged code needs
)

// quickTest is the longest test that runs before the others, in seconds. Most mutants are
// noticed by a test of a few milliseconds.
const quickTest = 0.1

// limitMemory sets the limit of this process, which the tests inherit.
func limitMemory() error {
	limit := syscall.Rlimit{Cur: maxMemory, Max: maxMemory}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		return fmt.Errorf("limit the memory of the tests: %w", err)
	}
	return nil
}

// outcome says which tests noticed a mutant.
type outcome int

const (
	survived outcome = iota // none
	byQuick                 // the quick ones of its package
	bySlow                  // the other ones of its package
	byOther                 // those of the other package
	bySeeds                 // TestSeeds
	notBuilt
	failed // the tests could not be run
)

// stage is a part of the tests.
type stage struct {
	outcome outcome
	folder  string
	args    []string // of the test program
	cpu     int      // limit in seconds; zero: none
}

// stages returns the tests that a mutant of a file must survive, those that take least
// time first. Of the quick ones those about the file notice most mutants.
func (t *tester) stages(file string) []stage {
	folder := filepath.Dir(file)
	// All tests together need longer than the quick ones, so that is limit enough for those.
	list := []stage{
		{byQuick, folder, []string{"-test.run", t.quick[folder], "-test.skip", t.notAbout(file)}, t.cpu[folder]},
		{byQuick, folder, []string{"-test.run", t.quick[folder]}, t.cpu[folder]},
		{bySlow, folder, []string{"-test.skip", t.quick[folder]}, moreCPU * t.cpu[folder]},
	}
	for _, other := range folders {
		if other != folder {
			list = append(list, stage{byOther, other, nil, moreCPU * t.cpu[other]})
		}
	}
	return append(list, t.simulation()...)
}

// notAbout returns a regular expression of the tests of a folder that are not in files named
// after this one.
func (t *tester) notAbout(file string) string {
	about := strings.TrimSuffix(file, ".go")
	var others []string
	for name, in := range t.tests {
		if filepath.Dir(in) == filepath.Dir(file) && !strings.HasPrefix(in, about) {
			others = append(others, name)
		}
	}
	return anyOf(others)
}

// anyOf returns a regular expression of tests.
func anyOf(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// simulation returns the tests that run the core in the simulator, if any are wanted.
func (t *tester) simulation() []stage {
	if t.seeds == 0 {
		return nil
	}
	return []stage{{bySeeds, "internal/sim", []string{"-test.run", "^TestSeeds$", "-seeds", strconv.Itoa(t.seeds)}, moreCPU * t.cpu["internal/sim"]}}
}

type tester struct {
	ctx       context.Context // ends when the user interrupts the tool
	root, dir string
	seeds     int
	quick     map[string]string // for each folder a regular expression of the quick tests
	tests     map[string]string // in which file each test is
	cpu       map[string]int    // for each folder the seconds of processor time that its tests need
}

// folders returns the folders whose tests run.
func (t *tester) folders() []string {
	if t.seeds == 0 {
		return folders
	}
	return append(slices.Clone(folders), "internal/sim")
}

// measure runs the tests that combineAll has built with no mutant active, and finds the
// quick ones.
func (t *tester) measure() error {
	t.quick, t.tests, t.cpu = map[string]string{}, map[string]string{}, map[string]int{}
	used := func() int {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) // does not fail for this process
		return int(u.Utime.Sec + u.Stime.Sec)
	}
	for _, folder := range folders {
		before := used()
		out, err := t.test(stage{folder: folder, args: []string{"-test.v"}}, 0)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		t.cpu[folder] = used() - before + 3
		t.quick[folder] = anyOf(quickTests(out))
		if err := t.findTests(folder); err != nil {
			return err
		}
	}
	for _, s := range t.simulation() {
		before := used()
		if out, err := t.test(s, 0); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		t.cpu[s.folder] = used() - before + 3
	}
	return nil
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// findTests notes in which file each test of a folder is.
func (t *tester) findTests(folder string) error {
	files, err := filepath.Glob(filepath.Join(t.root, folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			t.tests[m[1]] = filepath.Join(folder, filepath.Base(file))
		}
	}
	return nil
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (\w+) \(([\d.]+)s\)$`)

// quickTests returns the names of the quick tests in the output of go test -v.
func quickTests(out string) (names []string) {
	for _, m := range passed.FindAllStringSubmatch(out, -1) {
		if took, err := strconv.ParseFloat(m[2], 64); err == nil && took <= quickTest {
			names = append(names, m[1])
		}
	}
	return names
}

// testAll tests the first count mutants that can be built, several at a time, and a few
// more. The outcomes are in the order of the mutants.
func (t *tester) testAll(all []*mutant, count, jobs int) ([]outcome, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var results []outcome
	var broken error
	next, tested := 0, 0
	for range jobs {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < len(all) && tested < count && broken == nil {
				i := next
				next++
				results = append(results, notBuilt)
				mu.Unlock()
				o, out := t.try(all[i])
				mu.Lock()
				results[i] = o
				if o == failed {
					broken = fmt.Errorf("test a mutant: %s", out)
				}
				if o == notBuilt {
					continue
				}
				tested++
				if o == survived {
					fmt.Fprintln(os.Stderr, "survives:", all[i].key())
				}
				if tested%10 == 0 {
					fmt.Fprintf(os.Stderr, "%d of %d mutants tested\n", tested, count)
				}
			}
		})
	}
	wg.Wait()
	return results, broken
}

// try runs the tests with a mutant. It returns the output of the last command.
func (t *tester) try(m *mutant) (outcome, string) {
	worker, overlay := *t, ""
	if m.number == 0 {
		var err error
		if worker.dir, err = os.MkdirTemp(t.dir, "alone"); err != nil {
			return failed, err.Error()
		}
		defer os.RemoveAll(worker.dir)
		changed := filepath.Join(worker.dir, "mutant.go")
		if err := os.WriteFile(changed, m.mutated(), 0o600); err != nil {
			return failed, err.Error()
		}
		if overlay, err = worker.overlay(map[string]string{filepath.Join(t.root, m.file): changed}); err != nil {
			return failed, err.Error()
		}
	}
	stages := t.stages(m.file)
	for i, s := range stages {
		if m.number == 0 && (i == 0 || stages[i-1].folder != s.folder) {
			if out, err := worker.build(overlay, s.folder); err != nil && t.ctx.Err() == nil && i == 0 {
				return notBuilt, out
			} else if err != nil {
				return failed, out
			}
		}
		out, err := worker.test(s, m.number)
		if t.ctx.Err() != nil {
			return failed, "interrupted"
		}
		if err != nil {
			return s.outcome, out
		}
	}
	return survived, ""
}

// overlay writes the file that has the go command build other files in place of those of
// the module, and returns its name.
func (t *tester) overlay(replace map[string]string) (string, error) {
	text, _ := json.Marshal(map[string]any{"Replace": replace}) // strings always marshal
	file := filepath.Join(t.dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// program returns the name of the program with the tests of a folder.
func (t *tester) program(folder string) string {
	return filepath.Join(t.dir, filepath.Base(folder)+".test")
}

// build builds the tests of a folder.
func (t *tester) build(overlay, folder string) (string, error) {
	return t.command(t.root, "", "go", "test", "-c", "-vet=off", "-gcflags=-e", "-ldflags=-s -w", "-overlay", overlay, "-o", t.program(folder), "./"+folder)
}

// test runs tests that were built, with one mutant active.
func (t *tester) test(s stage, active int) (string, error) {
	args := append([]string{"-test.failfast", "-test.timeout", maxWall.String()}, s.args...)
	limit := "unlimited"
	if s.cpu > 0 {
		limit = strconv.Itoa(s.cpu)
	}
	args = append([]string{"-c", `ulimit -t "$0" && exec "$@"`, limit, t.program(s.folder)}, args...)
	return t.command(filepath.Join(t.root, s.folder), "ACTIVE_MUTANT="+strconv.Itoa(active), "sh", args...)
}

// command runs a program in a folder, with one more variable in its environment. It leaves no
// process behind.
func (t *tester) command(dir, env, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.ctx, 2*maxWall)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
