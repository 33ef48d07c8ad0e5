package packaging

import (
	"os/exec"
	"testing"
)

// TestDKMS compares the patches for amdgpu-dkms with those for Linux, and installs and removes them
// in small trees, with a recorder in place of dkms.
func TestDKMS(t *testing.T) {
	for _, tool := range []string{"patch", "awk", "tar"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	if out, err := exec.Command("../kernel/amdkfd/dkms/check.sh").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
