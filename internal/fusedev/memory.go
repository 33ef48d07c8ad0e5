package fusedev

import (
	"io"

	"golang.org/x/sys/unix"
)

// Memory is the memory of a process, or of the one that a thread belongs to:
// where the pointers in its arguments lead. Our own is read in the same way: a
// wrong address is an error then, as it is for a driver, and not the end of the
// test.
type Memory int

// Read fills buf from addr.
func (m Memory) Read(addr uint64, buf []byte) error { return m.move(unix.ProcessVMReadv, addr, buf) }

// Write puts buf at addr.
func (m Memory) Write(addr uint64, buf []byte) error { return m.move(unix.ProcessVMWritev, addr, buf) }

func (m Memory) move(by func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), addr uint64, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}
	n, err := by(int(m), local, remote, 0)
	if err == nil && n < len(buf) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
