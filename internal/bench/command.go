package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Giveway runs a subcommand of giveway for a process: set, pause or resume.
type Giveway func(subcommand string, pid int, flags ...string) error

// Program returns a Giveway that runs the program at path, as a user would.
func Program(path string) Giveway {
	return func(subcommand string, pid int, flags ...string) error {
		out, err := exec.Command(path, append([]string{subcommand, fmt.Sprint(pid)}, flags...)...).CombinedOutput()
		if text := strings.TrimSpace(string(out)); err != nil && text != "" {
			err = errors.New(text)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", path, subcommand, err)
		}
		return nil
	}
}
