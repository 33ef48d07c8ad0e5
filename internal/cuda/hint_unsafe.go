package cuda

import (
	"errors"

	"github.com/ebitengine/purego"
)

// Preloaded is a function of a library that was preloaded, as a program written
// in C would find it.
func Preloaded(name string) (call func(args ...uintptr) int32, err error) {
	f, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil || f == 0 {
		return nil, errors.New(name + " is in no library of this process: was it started by giveway run?")
	}
	return func(args ...uintptr) int32 {
		r, _, _ := purego.SyscallN(f, args...)
		return int32(r)
	}, nil
}
