package cuda

import (
	"errors"

	"github.com/ebitengine/purego"
)

// Preloaded returns a function of a preloaded library, found as a C program would
// find it.
func Preloaded(name string) (call func(args ...uintptr) int32, err error) {
	f, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil || f == 0 {
		return nil, errors.New("no library of this process has " + name + ": was the process started by giveway run?")
	}
	return func(args ...uintptr) int32 {
		r, _, _ := purego.SyscallN(f, args...)
		return int32(r)
	}, nil
}
