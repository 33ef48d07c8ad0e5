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

// newBench returns the command that executes giveway-bench. That is a program of its
// own because it loads the library of CUDA or HIP, so it cannot be static.
func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench [-- FLAGS]",
		Short: "Measure latency and throughput on this GPU, with the daemon and without",
		Long: `Measure on this machine's GPU, in one run: each process alone, all processes sharing
the GPU without the daemon, and under the daemon, which must run. Requests that arrive
late wait and are not dropped, and the output has P50, P90, P99 and max.

The command executes giveway-bench, which is searched beside giveway and then in PATH,
with the flags after --. 'giveway bench -- --help' lists them. It uses CUDA or, on an
AMD GPU, HIP.`,
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
					return errors.New("giveway-bench is neither beside giveway nor in PATH; 'make build' builds both")
				}
			}
			argv := append([]string{path, "run", "--giveway", self}, args...)
			return fmt.Errorf("run %s: %w", path, syscall.Exec(path, argv, os.Environ()))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w; flags of giveway-bench follow --, for example: giveway bench -- --cases micro", err)
	})
	amd := newBenchAMD()
	amd.SetFlagErrorFunc(flagError)
	cmd.AddCommand(amd)
	return cmd
}
