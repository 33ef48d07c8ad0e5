package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/shim"
)

// TestExtract: the shim is written where no other user can change it, and repaired
// whatever was done to it.
func TestExtract(t *testing.T) {
	dir, data := filepath.Join(t.TempDir(), "new"), []byte("a library")
	path, err := extract(data, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	whole := func() bool {
		got, err := os.ReadFile(path)
		info, err2 := os.Lstat(path)
		return err == nil && err2 == nil && string(got) == string(data) && info.Mode() == 0o755
	}
	before, _ := os.Stat(path)
	if again, err := extract(data, []string{dir}); err != nil || again != path || !whole() {
		t.Errorf("the second time: got %s, %v", again, err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the file was written again though it was right")
	}
	for name, spoil := range map[string]func() error{
		"other text":      func() error { return os.WriteFile(path, []byte("A library"), 0o755) },
		"for all":         func() error { return os.Chmod(path, 0o777) },
		"gone":            func() error { return os.Remove(path) },
		"somewhere else":  func() error { _ = os.Remove(path); return os.Symlink("/etc/passwd", path) },
		"half of it":      func() error { return os.Truncate(path, 4) },
		"an older folder": func() error { return os.Chmod(dir, 0o700) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := extract(data, []string{dir}); err != nil || !whole() {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files are left behind: got %v", left)
	}
}

// TestExtractElsewhere: folders that cannot be used are skipped.
func TestExtractElsewhere(t *testing.T) {
	base := t.TempDir()
	open, file, link, good := filepath.Join(base, "open"), filepath.Join(base, "file"), filepath.Join(base, "link"), filepath.Join(base, "good")
	for _, err := range []error{
		os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.WriteFile(file, nil, 0o600), os.Symlink(base, link),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bad := []string{open, file, link, filepath.Join(base, "a:b"), filepath.Join(base, "a b"), "/proc/giveway"}
	path, err := extract([]byte("x"), append(bad, good))
	if err != nil || filepath.Dir(path) != good {
		t.Errorf("got %s, %v; want a file in %s", path, err, good)
	}
	if _, err := extract([]byte("x"), bad); err == nil || !strings.Contains(err.Error(), "only its owner may change") {
		t.Errorf("without a usable folder: got %v", err)
	}
}

// TestPreload: the shim comes first, once, and other libraries stay.
func TestPreload(t *testing.T) {
	dir := t.TempDir()
	library := func() ([]byte, error) { return []byte("x"), nil }
	first, err := preload([]string{"A=1", "LD_PRELOAD=/a.so /b.so", "B=2"}, library, []string{dir})
	if err != nil || len(first) != 3 || !strings.HasPrefix(first[2], "LD_PRELOAD="+dir) || !strings.HasSuffix(first[2], ".so:/a.so:/b.so") {
		t.Fatalf("got %v, %v", first, err)
	}
	again, err := preload(first, library, []string{dir})
	if err != nil || !slices.Equal(again, first) {
		t.Errorf("the second time: got %v, %v", again, err)
	}
	env := []string{"A=1"}
	if got, err := preload(env, library, nil); err == nil || !slices.Equal(got, env) {
		t.Errorf("without a folder: got %v, %v", got, err)
	}
}

// TestPreloaded: a program and its children load the shim.
func TestPreloaded(t *testing.T) {
	if _, err := shim.Library(); err != nil {
		t.Skip(err)
	}
	env, err := preload(os.Environ(), shim.Library, []string{t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "cat /proc/self/maps; true")
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "/libgiveway-") {
		t.Errorf("got %v: %s", err, out)
	}
}

// TestRunNoRoom: if there is no room for the shim the program runs without it, with a
// one-line warning.
func TestRunNoRoom(t *testing.T) {
	if _, err := shim.Library(); err != nil {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spaces := "-rm"
	if os.Getuid() == 0 {
		spaces = "-m"
	}
	const full = `for dir in /run /var/lib; do mount -t tmpfs -o size=4k full $dir || exit; done; exec "$@"`
	within := func(args ...string) *exec.Cmd { // as root within a user namespace
		cmd := exec.Command("unshare", append([]string{spaces, "sh", "-c", full, "sh"}, args...)...)
		cmd.Env = append(os.Environ(), "TMPDIR=/run", "GIVEWAY_TEST_MAIN=1")
		return cmd
	}
	if out, err := within("true").CombinedOutput(); err != nil {
		t.Skipf("unshare is not permitted: %v: %s", err, out)
	}
	var stdout, stderr bytes.Buffer
	cmd := within(self, "run", "--class", "batch", "--", "sh", "-c", "cat /proc/self/maps; ls -A /run/giveway /var/lib/giveway /run/giveway-0")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("got %v: %s", err, &stderr)
	}
	line, rest, _ := strings.Cut(stderr.String(), "\n")
	if !strings.HasPrefix(line, "giveway: write the shim to a file: ") || !strings.Contains(line, "no space left") ||
		!strings.HasSuffix(line, "; sh runs without the shim") || rest != runWarning {
		t.Errorf("got warnings %q", &stderr)
	}
	if strings.Contains(stdout.String(), "libgiveway") {
		t.Errorf("a part of the shim was written: got %s", &stdout)
	}
}
