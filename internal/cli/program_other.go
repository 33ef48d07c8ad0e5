//go:build !linux

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// runProgram runs a program to its end. There is no daemon on such systems, and
// so nothing to be careful of.
func runProgram(path string, args, env []string) error {
	cmd := exec.Cmd{Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	err := cmd.Run()
	var status *exec.ExitError
	switch {
	case errors.As(err, &status):
		return ended{code: status.ExitCode()}
	case err != nil:
		return ended{code: exitCannotRun, err: fmt.Errorf("run %s: %w", args[0], err)}
	}
	return nil
}

func dieBy(syscall.Signal) {}
