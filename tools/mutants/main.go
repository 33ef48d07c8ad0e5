// Mutants measures how much the tests of the core notice. It makes small changes to
// the code, one at a time, and runs the tests with each. A change that no test
// notices survives, and shows a behaviour that no test is about.
//
//	go run ./mutants -root .. -n 150 -seed 0
//
// The sample depends only on the seed and the code. No file is edited in place: the
// tests are built with go test -overlay, and the quick ones run first. The file equivalent.txt lists the changes that
// no test can notice, each with the reason; they do not count.
//
// It is a tool of its own because gremlins, the maintained one, takes no sample by
// seed, runs only the tests of the changed package, and shows no diff.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// folders are mutated.
var folders = []string{"sched", "policy"}

func main() {
	root := flag.String("root", "..", "root of the module")
	count := flag.Int("n", 150, "number of mutants")
	seed := flag.Uint64("seed", 0, "of the sample")
	only := flag.String("only", "", "only mutants whose key matches this regular expression")
	jobs := flag.Int("jobs", 1, "mutants that are tested at the same time")
	list := flag.Bool("list", false, "print the mutants, as equivalent.txt names them, and test none")
	seeds := flag.Int("seeds", 150, "number of seeds of TestSeeds; 0: without TestSeeds")
	want := flag.Float64("want", 0, "exit with status 1 if the score, in per cent, is below this")
	flag.Parse()
	if *list {
		printAll(*root, *only)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	score, err := run(tester{ctx: ctx, root: *root, seeds: *seeds}, *only, *count, *seed, *jobs)
	if err == nil && score < *want {
		err = fmt.Errorf("the score is below %g %%: add tests for the survivors, or list them in equivalent.txt with the reason", *want)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// printAll prints every mutant that is not listed as equivalent.
func printAll(root, only string) {
	all, _, err := candidates(root, only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	for _, m := range all {
		fmt.Println(m.key())
	}
}

// run tests a sample of mutants, prints each survivor, and returns the score in per
// cent.
func run(t tester, only string, count int, seed uint64, jobs int) (float64, error) {
	var err error
	if t.root, err = filepath.Abs(t.root); err != nil {
		return 0, err
	}
	all, ignored, err := candidates(t.root, only)
	if err != nil {
		return 0, err
	}
	if t.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(t.dir)
	if err := limitMemory(); err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("seed %d: %d mutants, without %d that are equivalent\n", seed, len(all), ignored)
	// The compiler refuses some.
	if all, err = t.combineAll(all[:min(count+count/4+10, len(all))]); err != nil {
		return 0, err
	}
	if err := t.measure(); err != nil {
		return 0, fmt.Errorf("test the unchanged code: %w; repair that first", err)
	}
	results, err := t.testAll(all, count, jobs)
	if err != nil {
		return 0, err
	}
	tested, noticed := 0, map[outcome]int{}
	for i, o := range results {
		if o == notBuilt || tested == count {
			continue
		}
		tested++
		noticed[o]++
		if o == survived {
			fmt.Printf("survivor %d of %d: %s\n", noticed[survived], tested, all[i].diff())
		}
	}
	if tested == 0 {
		return 0, errors.New("choose mutants: none matches")
	}
	score := 100 * float64(tested-noticed[survived]) / float64(tested)
	fmt.Printf("%d mutants: %d noticed by the tests of their package, %d only by those of the other, %d only by TestSeeds, %d survived: score %.1f %%\n",
		tested, noticed[byQuick]+noticed[bySlow], noticed[byOther], noticed[bySeeds], noticed[survived], score)
	return score, nil
}

// candidates returns the mutants of all folders that are not listed as equivalent,
// and how many are.
func candidates(root, only string) (all []*mutant, ignored int, err error) {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return nil, 0, err
	}
	equivalent, err := readEquivalent(filepath.Join(root, "tools", "mutants", "equivalent.txt"))
	if err != nil {
		return nil, 0, err
	}
	for _, folder := range folders {
		found, err := findMutants(root, folder)
		if err != nil {
			return nil, 0, err
		}
		for _, m := range found {
			if _, ok := equivalent[m.key()]; ok {
				equivalent[m.key()] = true
				ignored++
			} else if wanted.MatchString(m.key()) {
				all = append(all, m)
			}
		}
	}
	for key, used := range equivalent {
		if !used {
			return nil, 0, fmt.Errorf("read equivalent.txt: the code has no mutant %q; remove the entry", key)
		}
	}
	return all, ignored, nil
}

// readEquivalent reads the list of equivalent mutants: a comment with the reason,
// then the keys that it is for.
func readEquivalent(name string) (map[string]bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, reason := map[string]bool{}, false
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		switch line := strings.TrimSpace(lines.Text()); {
		case line == "":
			reason = false
		case strings.HasPrefix(line, "#"):
			reason = true
		case !reason:
			return nil, fmt.Errorf("%s:%d: no reason: put a line with # and the reason above it", name, n)
		default:
			list[line] = false
		}
	}
	return list, lines.Err()
}
