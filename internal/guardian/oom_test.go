package guardian

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestScoresAreThoseOfTheUnit: the daemon raises its score if systemd started it with the guardian's.
func TestScoresAreThoseOfTheUnit(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/giveway.service.in")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "\nOOMScoreAdjust="+guardianScore+"\n") || guardianScore != "-1000" || daemonScore != "-900" {
		t.Errorf("the guardian has the score %s, the daemon %s; want those of the unit, -1000, and -900", guardianScore, daemonScore)
	}
}

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
	if err := setOOMScore(strconv.Itoa(raised)); err != nil {
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
	if err := setOOMScore(strconv.Itoa(found)); err != nil {
		t.Errorf("lower the score: %v", err)
	}
}
