package backends

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/journal"
)

// TestRestoreLeftNamesDamagedJournal: the error has the paths and what to do.
func TestRestoreLeftNamesDamagedJournal(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	path := journal.Path(socket)
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	queues, found, err := RestoreLeft([]string{socket}, slog.New(slog.DiscardHandler))
	if queues != 0 || !found || err == nil {
		t.Fatalf("got %d, %v, %v, want an error", queues, found, err)
	}
	want := "journal " + path + " is damaged: the file is not a journal. It is kept as " + journal.DamagedPath(path) +
		". Changes that it listed may still be in force: run 'giveway restore --all'"
	if got := strings.TrimSpace(err.Error()); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
