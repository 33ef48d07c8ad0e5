package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	module "github.com/giveway/giveway"
	"github.com/spf13/cobra"
)

// buildVersion is set by the linker (see Makefile): the output of packaging/version.sh.
var buildVersion string

type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version returns the version of this program: from the linker, else from the module
// version that the Go toolchain recorded, else the release of the source tree.
func version() versionInfo {
	recorded := ""
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") {
		recorded = strings.TrimPrefix(info.Main.Version, "v")
	}
	return versionInfo{
		Version:  cmp.Or(buildVersion, recorded, strings.TrimSpace(module.Release)),
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version()
			return show(cmd, v, fmt.Sprintf("giveway %s (%s, %s)\n", v.Version, v.Go, v.Platform))
		},
	}
	addJSON(cmd, printJSON)
	return cmd
}
