package discover

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/giveway/giveway/internal/proc"
)

// fakeProc makes a procfs with one process, 42, that has the given links.
func fakeProc(t *testing.T, links map[string]string) procfs {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "42", "fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, "42", name)); err != nil {
			t.Fatal(err)
		}
	}
	return procfs{proc.FS(root)}
}

func TestControls(t *testing.T) {
	links := map[string]string{
		"fd/0": "/dev/null", "fd/31": "/dev/nvidiactl", "fd/4": "socket:[12]", "fd/5": "/dev/nvidia0",
		"fd/6": "/run/rootfs/dev/nvidiactl", "fd/7": "/dev/nvidiactl (deleted)", "fd/8": "/tmp/notnvidiactl",
		"fd/9": "/srv/ctl", "fd/x": "/dev/nvidiactl", "fd/-1": "/dev/nvidiactl", "fd/99999999999": "/dev/nvidiactl",
		"exe": "/usr/bin/nvidia-cuda-mps-server (deleted)",
	}
	p := fakeProc(t, links)
	if got, err := p.controls(42, "/srv/ctl"); err != nil || !slices.Equal(got, []int{6, 7, 9, 31}) {
		t.Errorf("got %v, %v; want [6 7 9 31]", got, err)
	}
	if !p.isMPSServer(42) || p.isMPSServer(43) {
		t.Error("isMPSServer does not go by the executable")
	}
	if _, err := p.controls(43, ""); !os.IsNotExist(err) {
		t.Errorf("missing process: got %v, want fs.ErrNotExist", err)
	}
}
