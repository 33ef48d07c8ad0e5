package nvrmtest

import (
	"os"

	"github.com/giveway/giveway/internal/fusedev"
)

// Memory is the memory of whoever made a call: where the pointers in its
// arguments lead.
type Memory interface {
	Read(addr uint64, buf []byte) error
	Write(addr uint64, buf []byte) error
}

func ownMemory() Memory { return fusedev.Memory(os.Getpid()) }
