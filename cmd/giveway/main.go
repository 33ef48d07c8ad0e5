// Command giveway is the daemon and the command line of giveway.
package main

import (
	"os"

	"github.com/giveway/giveway/internal/cli"
)

func main() {
	cli.Wire()
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
