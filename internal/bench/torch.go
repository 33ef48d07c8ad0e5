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

// torchScript sends the same messages as giveway-bench: lc serves ResNet-50, be
// trains a transformer.
//
//go:embed torch_client.py
var torchScript []byte

// prepareTorch writes the script to dir and checks whether it can run. If it
// cannot, the cases that need it are skipped with the reason.
func (h *harness) prepareTorch(ctx context.Context, dir string, result *Result) error {
	h.script = filepath.Join(dir, "torch_client.py")
	if err := os.WriteFile(h.script, torchScript, 0o644); err != nil {
		return fmt.Errorf("write the PyTorch client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, h.Python, h.script, "check").CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	last := lines[len(lines)-1] // warnings and stack traces come before
	if err != nil {
		h.noTorch = fmt.Sprintf("needs %s with PyTorch and a GPU: %v: %s", h.Python, err, last)
		return nil
	}
	result.Machine.PyTorch = last
	return nil
}
