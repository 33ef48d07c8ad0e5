package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func installCommand() *cobra.Command {
	return &cobra.Command{
		Use: "install-library FILE FOLDER", Args: cobra.ExactArgs(2),
		Short: "Copy the shim to a folder of the node",
		Long: `Copy the shim to a folder of the node, from which the agent mounts it into pods
that ask for it. A file that is there is replaced in one step: running processes keep the
one that they have.`,
		RunE: func(_ *cobra.Command, args []string) error { return install(args[0], args[1]) },
	}
}

func install(file, folder string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("install the shim: %w", err)
	}
	temporary, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return fmt.Errorf("install the shim: %w", err)
	}
	defer os.Remove(temporary.Name()) // it is gone if all went well
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Chmod(0o755)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(folder, filepath.Base(file)))
	}
	if err != nil {
		return fmt.Errorf("install the shim: %w", err)
	}
	return nil
}
