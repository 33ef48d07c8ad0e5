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

// torchCheck finds out whether the PyTorch client can run. It takes as long as a client needs to
// start, so the clients of the first case start meanwhile.
type torchCheck struct {
	script string        // path of the PyTorch client
	done   chan struct{} // closed when the check has ended; the rest is valid then

	version string
	problem string // why it cannot run; the cases that need it are skipped
}

// checkTorch writes the script to dir and begins to check whether it can run.
func (h *harness) checkTorch(ctx context.Context, dir string) (*torchCheck, error) {
	c := &torchCheck{script: filepath.Join(dir, "torch_client.py"), done: make(chan struct{})}
	if err := os.WriteFile(c.script, torchScript, 0o644); err != nil {
		return nil, fmt.Errorf("write the PyTorch client: %w", err)
	}
	go func() {
		defer close(c.done)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, h.Python, c.script, "check").CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		last := lines[len(lines)-1] // warnings and stack traces come before
		if err != nil {
			c.problem = fmt.Sprintf("needs %s with PyTorch and a GPU: %v: %s", h.Python, err, last)
			return
		}
		c.version = last
	}()
	return c, nil
}

// cannotRun returns the problem that the check has found, once it has ended.
func (c *torchCheck) cannotRun() string {
	<-c.done
	return c.problem
}
