package pool

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestControlPIDOfWhateverIsThere checks that what another user may put in the place of the
// control daemon's file neither delays a program nor takes its memory.
func TestControlPIDOfWhateverIsThere(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := put(filepath.Join(dir, controlProgram+".pid")); err != nil {
				t.Fatal(err)
			}
			if pid := controlPID(dir); pid != 0 {
				t.Errorf("got process %d, want none", pid)
			}
		})
	}
}
