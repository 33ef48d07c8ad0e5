// Package hiptest builds the doubles of HIP's libraries, for tests on machines without an
// AMD GPU. shim/test/hipdevice.c says what they do.
package hiptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Build builds libamdhip64 and libhiprtc of HIP 5 or 6 in a folder of the test's own, and
// returns the folder. In HIP 5 they are one library. It skips the test where there is no C
// compiler.
func Build(t testing.TB, version int) (dir string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build the doubles of HIP with")
	}
	dir = t.TempDir()
	device, compiler := filepath.Join(sources(t), "hipdevice.c"), filepath.Join(sources(t), "fakehiprtc.c")
	libraries := map[string][]string{"libamdhip64.so.6": {device}, "libhiprtc.so.6": {compiler}}
	if version == 5 {
		libraries = map[string][]string{"libamdhip64.so.5": {"-DHIP5", device, compiler}}
	}
	for name, of := range libraries {
		args := append([]string{"-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wl,-Bsymbolic", "-o", filepath.Join(dir, name)}, of...)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}

// Use builds the doubles and makes programs that the test starts find them.
func Use(t *testing.T) {
	t.Helper()
	t.Setenv("LD_LIBRARY_PATH", Build(t, 6))
}

// sources returns the folder shim/test of the module that the test is in.
func sources(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	folder := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "shim", "test")
	if err == nil {
		_, err = os.Stat(folder)
	}
	if err != nil {
		t.Skipf("the sources of the doubles are not here: %v", err)
	}
	return folder
}
