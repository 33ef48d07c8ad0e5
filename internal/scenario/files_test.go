package scenario

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
)

// TestScenarioFiles runs every file in scenarios/ under every policy, for a short
// time. No rule of the simulator may be broken, and a second run must be the same.
func TestScenarioFiles(t *testing.T) {
	paths, err := filepath.Glob("../../scenarios/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	warmup, length := 500*time.Millisecond, 3*time.Second
	if testing.Short() {
		warmup, length = 50*time.Millisecond, 150*time.Millisecond
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if s.Name != name || s.Doc == "" {
				t.Errorf("got name %q and doc %q, want the file's name and a doc", s.Name, s.Doc)
			}
			s.Config.Warmup, s.Config.Length = warmup, length
			out := run(t, s, Options{}, policy.Names()...)
			for _, v := range out.Violations() {
				t.Errorf("seed %d: %s", out.Seed, v)
			}
			for _, r := range out.Runs {
				if n := r.Result.Inversions; s.Config.Faults == (sim.Faults{}) && n.Count > 0 {
					t.Errorf("%s: %d priority inversions, and the device does as it is told; the first: %+v", r.Policy, n.Count, n.First)
				}
			}
			again := run(t, s, Options{}, policy.Names()[0])
			if !reflect.DeepEqual(again.Runs[0], out.Runs[0]) {
				t.Errorf("two runs under %s differ", policy.Names()[0])
			}
			checkSLOIsGiveway(t, s, out)
			if !reflect.DeepEqual(again.Alone, out.Alone) {
				t.Error("two runs of the clients alone differ")
			}
		})
	}
}

// TestScenarioFilesBeginWithAComment checks that each file says what it shows.
func TestScenarioFilesBeginWithAComment(t *testing.T) {
	for _, pattern := range []string{"../../scenarios/*.yaml", "../../scenarios/traces/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), "# ") {
				t.Errorf("%s does not begin with a comment", path)
			}
		}
	}
}

// checkSLOIsGiveway checks that slo, the default policy, schedules exactly as
// giveway does in a scenario in which no client has an SLO.
func checkSLOIsGiveway(t *testing.T, s *Scenario, out Outcome) {
	t.Helper()
	for _, c := range s.Config.Clients {
		if c.Attr.SLO > 0 {
			return
		}
	}
	names := policy.Names()
	slo, giveway := out.Runs[slices.Index(names, "slo")], out.Runs[slices.Index(names, "giveway")]
	slo.Policy = giveway.Policy
	if !reflect.DeepEqual(slo, giveway) {
		t.Errorf("without an SLO: slo gives\n%+v\ngiveway gives\n%+v", slo, giveway)
	}
}
