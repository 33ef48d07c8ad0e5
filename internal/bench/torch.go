package bench

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// torchScript speaks as giveway-bench does: lc serves ResNet-50, be trains.
//
//go:embed torch_client.py
var torchScript []byte

// prepareTorch writes the script and asks whether it can run; if not, the cases
// are skipped with the reason.
func (h *harness) prepareTorch(ctx context.Context, dir string, result *Result) error {
	h.script = filepath.Join(dir, "torch_client.py")
	if err := os.WriteFile(h.script, torchScript, 0o644); err != nil {
		return fmt.Errorf("write the PyTorch client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, h.Python, h.script, "check").CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	said := lines[len(lines)-1] // warnings and traces come before
	if err != nil {
		h.noTorch = fmt.Sprintf("%s with PyTorch and a GPU is needed: %v: %s", h.Python, err, said)
		return nil
	}
	result.Machine.PyTorch = said
	return nil
}
