package nvrmtest

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Memory is the memory of whoever made a call: where the pointers in its
// arguments lead.
type Memory interface {
	Read(addr uint64, buf []byte) error
	Write(addr uint64, buf []byte) error
}

// processMemory is the memory of a process, or of the one that a thread belongs
// to. Our own is read in the same way: a wrong address is an error then, as it is
// for the driver, and not the end of the test.
type processMemory int

func ownMemory() Memory { return processMemory(os.Getpid()) }

// Read implements Memory.
func (p processMemory) Read(addr uint64, buf []byte) error {
	return p.move(unix.ProcessVMReadv, addr, buf)
}

// Write implements Memory.
func (p processMemory) Write(addr uint64, buf []byte) error {
	return p.move(unix.ProcessVMWritev, addr, buf)
}

func (p processMemory) move(by func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), addr uint64, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}
	n, err := by(int(p), local, remote, 0)
	if err == nil && n < len(buf) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
