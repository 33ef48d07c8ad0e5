// Package shim embeds libgiveway.so, the library that `giveway run` preloads into programs so
// that their launches pass the gate. The library is written in C, in this folder. make builds
// it, and this package embeds it in the giveway binary.
package shim

import (
	"embed"
	"fmt"
	"runtime"
)

//go:embed all:lib
var built embed.FS

// Library returns the shim, libgiveway.so, for the architecture of this binary.
func Library() ([]byte, error) {
	library, err := built.ReadFile("lib/libgiveway-" + runtime.GOARCH + ".so")
	if err != nil {
		return nil, fmt.Errorf("this binary was built without the shim for %s: run make", runtime.GOARCH)
	}
	return library, nil
}
