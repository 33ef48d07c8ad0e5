package fusedev

import (
	"io"

	"golang.org/x/sys/unix"
)

// Memory is the memory of the process with this pid or thread id, in which the pointers of
// its arguments lie. The memory of our own process is read in the same way, so that a wrong
// address is an error, as for a driver, and not a crash.
type Memory int

// Read fills buf from addr.
func (m Memory) Read(addr uint64, buf []byte) error { return m.move(unix.ProcessVMReadv, addr, buf) }

// Write copies buf to addr.
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
