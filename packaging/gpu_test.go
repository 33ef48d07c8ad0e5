package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/bench"
)

// targetPart is a part of what gpu-tests.sh targets measures.
type targetPart struct {
	name           string
	expected, most int // seconds
	command        string
}

func targetParts(t *testing.T) (parts []targetPart) {
	t.Helper()
	script, err := os.ReadFile("gpu-tests.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^  part (\S+) (\d+) (\d+) (.+)$`).FindAllStringSubmatch(string(script), -1) {
		p := targetPart{name: m[1], command: m[4]}
		p.expected, _ = strconv.Atoi(m[2])
		p.most, _ = strconv.Atoi(m[3])
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		t.Fatal("gpu-tests.sh has no parts")
	}
	return parts
}

// TestTargetPartsFitIntoThreeCalls plays three calls of nine minutes, in which each part takes as long as
// it is expected to.
func TestTargetPartsFitIntoThreeCalls(t *testing.T) {
	const call = 9*60 - 10 // seconds for parts
	parts, sum := targetParts(t), 0
	measured := ""
	for _, p := range parts {
		if p.most < p.expected*6/5 || p.most > call {
			t.Errorf("%s: got a limit of %d s, want a fifth more than the expected %d s, and at most %d s", p.name, p.most, p.expected, call)
		}
		if p.name != "kills-3" { // only if hosts were slow
			sum += p.expected
		}
		measured += p.command + " "
	}
	if sum > 3*call {
		t.Errorf("the parts take %d s, want at most %d", sum, 3*call)
	}
	var done []string
	for i := range 3 {
		left := call
		for _, p := range parts {
			if p.expected <= left && !slices.Contains(done, p.name) {
				left -= p.expected
				done = append(done, p.name)
			}
		}
		t.Logf("call %d: %q so far, %d s left", i+1, done, left)
	}
	for _, p := range parts {
		if !slices.Contains(done, p.name) && p.name != "kills-3" {
			t.Errorf("%s does not fit into three calls", p.name)
		}
	}
	for _, c := range bench.Cases() {
		if len(c.Targets) > 0 && !slices.Contains(strings.FieldsFunc(measured, func(r rune) bool { return r == ' ' || r == ',' }), c.Name) && c.Name != "loop-60us" {
			t.Errorf("case %s has targets, and no part measures it", c.Name) // loop-60us is between the two that are measured
		}
	}
}

// gpuScript returns a folder with gpu-tests.sh and programs that write their arguments to the file calls. The
// tests that kill the daemon write a result, and have time for 120 kills. timeout writes its limit, and runs the program.
func gpuScript(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile("gpu-tests.sh")
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), "  sleep 4\n", "", 1))       // for the clients to start
	text = []byte(strings.Replace(string(text), "exec sleep 60", "true", 1)) // it would keep the output open
	programs := map[string]string{
		"timeout": `echo "limit $2" >>calls; shift 2; exec "$@"`,
		"e2e.test": `echo "$*" >>calls
case $* in
  *Killed*) n=${*: -1}; ((n <= 120)) || n=120; echo '{"test": "TestKilledWithLateEntryAndPool",' "\"rows\": [{
"'"name": "'"$n"' kills",
"latency": {"count": '"$n"'}}],
"passed": true}' >"$GIVEWAY_RESULTS/TestKilledWithLateEntryAndPool.json" ;;
  *ShimCost*) exit 1 ;;
esac`,
		"giveway-bench": `case $1 in
  be) cat >/dev/null ;;
  targets) echo "the table of $3" ;;
  *) echo "$*" >>calls ;;
esac`,
	}
	for _, name := range []string{"giveway", "nvrm.test", "nvidia.test", "nvtrace.test"} {
		programs[name] = "true"
	}
	for name, body := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "gpu-tests.sh"), text, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runGPUScript runs gpu-tests.sh and returns what it printed, and the lines of the file calls.
func runGPUScript(t *testing.T, dir string, args ...string) (out string, calls []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{filepath.Join(dir, "gpu-tests.sh"), "-o", filepath.Join(dir, "results")}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	text, _ := cmd.CombinedOutput() // it fails where a part does
	all, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := os.Remove(filepath.Join(dir, "calls")); err != nil {
		t.Fatal(err)
	}
	return string(text), strings.Split(strings.TrimSpace(string(all)), "\n")
}

// TestTargetPartsAreMeasuredOnce runs the script three times on programs that do nothing. The first call is
// too short for most parts, the second measures them, and the third only what was asked for again.
func TestTargetPartsAreMeasuredOnce(t *testing.T) {
	dir, parts := gpuScript(t), targetParts(t)
	out, calls := runGPUScript(t, dir, "targets", "1")
	_, left, _ := strings.Cut(out, "==== left for the next call: ")
	left, _, _ = strings.Cut(left, "\n")
	later := strings.Fields(left)
	for _, p := range parts {
		if is := slices.Contains(later, p.name); p.expected > 50 && !is || p.expected <= 40 && is {
			t.Errorf("%s, %d s: left for the next call: %v\n%s", p.name, p.expected, is, out)
		}
	}
	if !strings.Contains(out, "the table of "+dir) {
		t.Errorf("got\n%s\nwant the table", out)
	}
	if text := strings.Join(calls, "\n"); !strings.Contains(text, "TestShimOrder") || !strings.Contains(text, "--cases loop-1us,loop-200us --length 3s --targets-only") || strings.Contains(text, "heavy") {
		t.Errorf("got calls %q, want those of short parts", calls)
	}
	for _, c := range calls {
		var limit int
		if n, _ := fmt.Sscanf(c, "limit %d", &limit); n == 1 && (limit > 50 || limit < 20) {
			t.Errorf("got %q, want at most the 50 s that were left", c)
		}
	}
	if !strings.Contains(out, "==== FAILED:\n  ./e2e.test -test.v -test.run ^TestShimCost$") {
		t.Errorf("got\n%s\nwant the part that failed", out)
	}
	out, calls = runGPUScript(t, dir, "targets")
	if n := strings.Count(out, "done before"); n != len(parts)-len(later) || strings.Contains(out, "left for the next call") {
		t.Errorf("got %d parts done before; want all but %q, and none left\n%s", n, later, out)
	}
	kills := slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.Contains(c, "-kills ") })
	if len(kills) != 3 || !strings.HasSuffix(kills[0], "-kills 300") || !strings.HasSuffix(kills[1], "-kills 180") || !strings.HasSuffix(kills[2], "-kills 60") {
		t.Errorf("got %q, want 300 kills, and then those for which there was no time", kills)
	}
	if _, err := os.Stat(filepath.Join(dir, "results", "TestKilledWithLateEntryAndPool-kills-2.json")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "results", "done", "heavy")); err != nil {
		t.Fatal(err)
	}
	out, calls = runGPUScript(t, dir, "targets", "9")
	if n := strings.Count(out, "done before"); n != len(parts)-1 || len(calls) != 2 || !strings.Contains(calls[1], "--cases heavy ") {
		t.Errorf("got %d parts done before and calls %q; want all but heavy\n%s", n, calls, out)
	}
}

// TestTargetPartThatIsCutIsMeasuredAgain ends a part at its limit.
func TestTargetPartThatIsCutIsMeasuredAgain(t *testing.T) {
	dir := gpuScript(t)
	if err := os.WriteFile(filepath.Join(dir, "timeout"), []byte("#!/bin/bash\necho \"limit $2\" >>calls; [[ $* != *TestShimOrder* ]] || exit 124\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, _ := runGPUScript(t, dir, "targets", "1")
		if !strings.Contains(out, "==== orders (about") || !strings.Contains(out, "TIME LIMIT") || !strings.Contains(out, "next call: orders ") {
			t.Errorf("got\n%s\nwant the part measured, and left for the next call", out)
		}
	}
}
