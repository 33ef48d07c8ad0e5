package nvtrace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// memoryKind says how RM allocates memory.
type memoryKind int

const (
	// devicelessMemory belongs to the client. It is contiguous, so the kernel's largest
	// page order limits it.
	devicelessMemory memoryKind = iota
	// systemMemory belongs to the device and need not be contiguous.
	systemMemory
)

// memory is an RM memory object that is mapped read-only.
type memory struct {
	client *client
	handle nvrm.Handle
	parent nvrm.Handle
	file   control // for this mapping: an open file holds one
	linear uint64
	mapped bool
	bytes  []byte
}

// newMemory makes a memory object of at least size bytes and maps it.
func newMemory(c *client, k memoryKind, handle nvrm.Handle, size int) (*memory, error) {
	m := &memory{client: c}
	if err := m.make(k, handle, size); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *memory) make(k memoryKind, handle nvrm.Handle, size int) error {
	const page = 4096
	size = (size + page - 1) &^ (page - 1)
	class, attr := uint32(nvgpu.NV01_MEMORY_DEVICELESS), uint32(attrCached)
	m.parent = m.client.handle
	if k == systemMemory {
		class, attr = nvgpu.NV01_MEMORY_SYSTEM, attrCached|attrLocationPCI|attrNoncontiguous
		m.parent = m.client.device
	}
	params := make([]byte, sizeMemory)
	le.PutUint32(params[memoryOwner:], uint32(m.client.handle))
	le.PutUint32(params[memoryAttr:], attr)
	le.PutUint32(params[memoryAttr2:], attr2UserIsReadOnly)
	le.PutUint64(params[memorySize:], uint64(size))
	h, err := m.client.alloc(m.parent, handle, class, params)
	if err != nil {
		return err
	}
	m.handle = h
	if m.file, err = m.client.open(); err != nil {
		return err
	}
	m.linear, err = nvrm.MapMemory(m.client.file, m.client.handle, m.parent, m.handle, uint64(size), m.file.Fd())
	if err != nil {
		return err
	}
	m.mapped = true
	if m.bytes, err = unix.Mmap(m.file.Fd(), 0, size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map %v: %w", m.handle, os.NewSyscallError("mmap", err))
	}
	return nil
}

// close unmaps and frees the memory. A second call does nothing.
func (m *memory) close() error {
	if m == nil {
		return nil
	}
	var errs []error
	if m.bytes != nil {
		errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(m.bytes)))
	}
	if m.mapped {
		errs = append(errs, nvrm.UnmapMemory(m.client.file, m.client.handle, m.parent, m.handle, m.linear))
	}
	if m.handle != 0 {
		errs = append(errs, nvrm.Free(m.client.file, m.client.handle, m.parent, m.handle))
	}
	if m.file != nil {
		errs = append(errs, m.file.Close())
	}
	*m = memory{client: m.client}
	return errors.Join(errs...)
}
