package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOwnerOfTheFile: a file that another user can change is refused.
func TestOwnerOfTheFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files of another user")
	}
	path := filepath.Join(t.TempDir(), "giveway.yaml")
	if err := os.WriteFile(path, []byte("policy: rr\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  int
		mode uint32
		want string
	}{
		{0, 0o644, ""},
		{0, 0o600, ""},
		{65534, 0o644, "belongs to user 65534, and only root is trusted;"},
		{0, 0o664, "other users may write to"},
		{0, 0o646, "other users may write to"},
	} {
		if err := os.Chown(path, c.uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("owner %d, mode %#o: got %v, want %q", c.uid, c.mode, err, c.want)
		}
	}
}
