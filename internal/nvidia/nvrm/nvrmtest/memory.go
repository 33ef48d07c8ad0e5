package nvrmtest

import (
	"os"

	"github.com/giveway/giveway/internal/fusedev"
)

// Memory is the memory of the process that makes a call. The pointers in its arguments
// refer to it.
type Memory interface {
	Read(addr uint64, buf []byte) error
	Write(addr uint64, buf []byte) error
}

func ownMemory() Memory { return fusedev.Memory(os.Getpid()) }
