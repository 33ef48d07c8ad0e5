package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// newBench hands over to giveway-bench: the one program of ours that loads
// NVIDIA's library, and so is not static.
func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench [-- FLAGS]",
		Short: "Measure what the running daemon does for latency and throughput on this GPU",
		Long: `Measure on this machine's GPU, in one run: each program alone, sharing as the vendor
has it, and sharing with the daemon that runs. P50, P90, P99 and max, never a mean
alone; late requests wait, and are not dropped.

The work is done by giveway-bench, which is looked for beside this program and on the
PATH. What follows -- is for it; 'giveway bench -- --help' lists that.`,
		Example: `  giveway bench
  giveway bench -- --cases micro,eight --json result.json --html result.html`,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			path := filepath.Join(filepath.Dir(self), "giveway-bench")
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				if path, err = exec.LookPath("giveway-bench"); err != nil {
					return errors.New("giveway-bench is neither beside this program nor on the PATH: 'make build' makes both")
				}
			}
			argv := append([]string{path, "run", "--giveway", self}, args...)
			return fmt.Errorf("run %s: %w", path, syscall.Exec(path, argv, os.Environ()))
		},
	}
	cmd.AddCommand(newBenchAMD())
	return cmd
}
