package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInstall: the shim is replaced in one step, and nothing else is left in the folder.
func TestInstall(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "libgiveway.so"), t.TempDir()
	for _, content := range []string{"one", "two"} {
		if err := os.WriteFile(from, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := install(from, to); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(to, "libgiveway.so"))
		all, _ := os.ReadDir(to)
		if err != nil || string(got) != content || len(all) != 1 {
			t.Errorf("got %q, %v and %d files, want %q and one", got, err, len(all), content)
		}
	}
	if err := install(filepath.Join(to, "none"), to); err == nil {
		t.Error("a file that is not there: got no error")
	}
}
