package discover

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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
	dir := t.TempDir()
	control, other := filepath.Join(dir, "nvidiactl"), filepath.Join(dir, "other")
	for _, err := range []error{
		os.WriteFile(control, nil, 0o600), os.Link(control, other), os.Mkdir(filepath.Join(dir, "x"), 0o700),
		os.WriteFile(filepath.Join(dir, "x", "nvidiactl"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := fakeProc(t, map[string]string{
		"fd/0": "/dev/null", "fd/31": control, "fd/4": "socket:[12]", "fd/6": other, "fd/7": dir + "/x/nvidiactl",
		"fd/8": dir, "fd/x": control, "fd/-1": control, "fd/99999999999": control,
		"exe": "/usr/bin/nvidia-cuda-mps-server (deleted)",
	})
	if got := controlsIn(t, p, control); !slices.Equal(got, []int{6, 31}) {
		t.Errorf("got %v, want [6 31]: the file and its other name", got)
	}
	if got := controlsIn(t, p, dir+"/missing"); len(got) != 0 {
		t.Errorf("without a control device: got %v", got)
	}
	if !p.isMPSServer(42) || p.isMPSServer(43) {
		t.Error("isMPSServer does not go by the executable")
	}
	if _, err := p.descriptors(43, ""); !os.IsNotExist(err) {
		t.Errorf("missing process: got %v, want fs.ErrNotExist", err)
	}
}

// TestControlsByNumber checks that a character device counts by its number.
func TestControlsByNumber(t *testing.T) {
	dir := t.TempDir()
	null := filepath.Join(dir, "other")
	if err := unix.Mknod(null, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("cannot make a device file: %v", err)
	}
	p := fakeProc(t, map[string]string{"fd/3": null, "fd/4": "/dev/zero", "fd/5": "/dev/null"})
	if got := controlsIn(t, p, "/dev/null"); !slices.Equal(got, []int{3, 5}) {
		t.Errorf("got %v, want [3 5]", got)
	}
}

func controlsIn(t *testing.T, p procfs, control string) []int {
	t.Helper()
	d, err := p.descriptors(42, control)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fds, _, next, err := d.controls(0)
	if err != nil || next != 0 {
		t.Errorf("got %v, next %d, %v", fds, next, err)
	}
	slices.Sort(fds)
	return fds
}
