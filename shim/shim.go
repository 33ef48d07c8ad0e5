// Package shim holds libgiveway.so, the library that programs are started with
// so that their launches pass a gate. The library itself is C, in this folder;
// make builds it, and this package carries it inside the giveway binary.
package shim

import (
	"embed"
	"fmt"
	"runtime"
)

//go:embed all:lib
var built embed.FS

// Library returns the preload library for the machine that this program was
// built for.
func Library() ([]byte, error) {
	library, err := built.ReadFile("lib/libgiveway-" + runtime.GOARCH + ".so")
	if err != nil {
		return nil, fmt.Errorf("built without the preload library for %s: run make", runtime.GOARCH)
	}
	return library, nil
}
