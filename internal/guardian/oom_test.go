package guardian

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestGuardianMayLowerItsOOMScoreAgain checks the rule that the unit relies on: a child of a
// process that raised its score may lower it to where it was, without a capability. The test
// raises from the present score: from -1000 only a privileged test could.
func TestGuardianMayLowerItsOOMScoreAgain(t *testing.T) {
	text, err := os.ReadFile(oomFile)
	if err != nil {
		t.Fatal(err)
	}
	found, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	raised := min(found+100, 1000)
	if err := setOOMScore(raised); err != nil {
		t.Fatalf("raise the score: %v", err)
	}
	script := "cat " + oomFile + "; echo " + strconv.Itoa(found) + " > " + oomFile + " && cat " + oomFile
	args := []string{"sh", "-c", script}
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--bounding-set", "-sys_resource"}, args...)
	}
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if got, want := strings.Fields(string(out)), []string{strconv.Itoa(raised), strconv.Itoa(found)}; err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("a child lowers its score: got %q, %v; want %q", out, err, want)
	}
	if err := setOOMScore(found); err != nil {
		t.Errorf("lower the score: %v", err)
	}
}
