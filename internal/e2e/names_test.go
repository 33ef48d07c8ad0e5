package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/policy"
)

// shimOnlyConfig makes the daemon leave the NVIDIA driver alone.
const shimOnlyConfig = "nvidia: false\n"

// boundPolicy and a number bound the commands in flight of batch queues.
const boundPolicy = "giveway:bound="

var boundPolicies = []string{
	"native", boundPolicy + "1", boundPolicy + "2", boundPolicy + "4", boundPolicy + "8", boundPolicy + "16",
}

// slicePolicies has native and giveway three times, for their medians.
var slicePolicies = []string{
	"native", "giveway", "giveway:slice=2ms", "giveway:slice=1ms",
	"native", "giveway", "giveway:slice=500us", "giveway:slice=200us",
	"native", "giveway",
}

// TestPoliciesExist needs no GPU. It fails when a policy, a parameter or a
// configuration key that the GPU tests use was renamed.
func TestPoliciesExist(t *testing.T) {
	for _, s := range slices.Concat(boundPolicies, slicePolicies, []string{"slo"}) {
		name, rest, _ := strings.Cut(s, ":")
		params := map[string]string{}
		if key, value, ok := strings.Cut(rest, "="); ok {
			params[key] = value
		}
		if _, err := policy.Choose(name, params); err != nil {
			t.Errorf("policy %q: %v", s, err)
		}
	}
	for _, text := range []string{shimOnlyConfig, processMetricsConfig} {
		if _, err := config.Parse("giveway.yaml", []byte(text)); err != nil {
			t.Error(err)
		}
	}
}

// TestGroupsAreComplete needs no GPU. It fails when a GPU test is in no group of
// gpu-tests.sh, or when a group names a test that does not exist.
func TestGroupsAreComplete(t *testing.T) {
	script, err := os.ReadFile("../../packaging/gpu-tests.sh")
	if err != nil {
		t.Skipf("not in the source tree: %v", err) // in the GPU bundle
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("list test files: %v", err)
	}
	var exist []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tb := newTestbed`).FindAllSubmatch(text, -1) {
			exist = append(exist, string(test[1]))
		}
	}
	groups, parts, ok := strings.Cut(string(script), "\n# part NAME ")
	if !ok {
		t.Fatal("gpu-tests.sh has no parts")
	}
	for _, name := range regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(parts, -1) {
		if !slices.Contains(exist, name) {
			t.Errorf("a part of gpu-tests.sh names %s, which does not exist", name)
		}
	}
	grouped := regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(groups, -1)
	grouped = slices.DeleteFunc(grouped, func(s string) bool { return s == "TestDoubleAnswersAsDriver" || s == "TestOnGPU" }) // of other packages
	amd, err := os.ReadFile("../../packaging/amd-tests.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(string(amd), -1) {
		if name != "TestConformance" && !slices.Contains(exist, name) {
			t.Errorf("amd-tests.sh names %s, which does not exist", name)
		}
	}
	slices.Sort(exist)
	slices.Sort(grouped)
	if !slices.Equal(exist, grouped) {
		t.Errorf("tests in gpu-tests.sh:\n%q\nwant each GPU test of this package once:\n%q", grouped, exist)
	}
}
