package nvrmtest

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/fusedev"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

var le = binary.LittleEndian

// Statuses that only the double uses, from nvstatuscodes.h.
const (
	errInsertDuplicateName nvrm.Status = 0x19
	errInvalidAddress      nvrm.Status = 0x1e
)

// Config configures an RM.
type Config struct {
	// FirstClient is the handle of the first client, as if all lower ones had been used
	// and freed. Zero: c1d00028, as on a machine that has been in use.
	FirstClient nvrm.Handle
	UUID        [16]byte            // identity of the GPU
	GPU         GPU                 // runs the compute groups; nil: none
	Sleep       func(time.Duration) // waits for an injected latency; nil: time.Sleep
}

// GroupID is a channel group's number on its runlist.
type GroupID uint32

// GPU runs channel groups. RM calls it for groups of the graphics engine, one call at a
// time.
type GPU interface {
	Opened(GroupID)
	Closed(GroupID)
	SetSlice(GroupID, time.Duration)
	Interrupt(GroupID) // all channels are disabled
	Restore(GroupID)
}

// RM is a resource manager in memory. Its methods may be called from any goroutine.
type RM struct {
	cfg Config

	drivertest.Faults[Call, Fault] // has Calls

	mu         sync.Mutex
	clients    map[nvrm.Handle]*client
	nextClient nvrm.Handle
	logged     int
}

// New returns an RM without clients.
func New(cfg Config) *RM {
	if cfg.FirstClient == 0 {
		cfg.FirstClient = 0xc1d00028
	}
	if cfg.Sleep == nil {
		cfg.Sleep = time.Sleep
	}
	return &RM{cfg: cfg, clients: make(map[nvrm.Handle]*client), nextClient: cfg.FirstClient}
}

// File is a descriptor of an open control file, for use in this process.
type File struct {
	open   *openFile
	closed bool
}

// openFile is an open control file. It owns the clients that were made through it: no other
// file reaches them, and they are freed when its last descriptor is closed.
type openFile struct {
	rm          *RM
	descriptors int
}

// Open opens the control file.
func (rm *RM) Open() *File { return &File{open: &openFile{rm: rm, descriptors: 1}} }

// Copy returns another descriptor of the same open file, as pidfd_getfd does. It panics if
// f is closed.
func (f *File) Copy() *File {
	f.open.rm.mu.Lock()
	defer f.open.rm.mu.Unlock()
	if f.closed {
		panic("nvrmtest: copy of a closed descriptor")
	}
	f.open.descriptors++
	return &File{open: f.open}
}

// Close closes the descriptor. Closing the last descriptor of an open file frees its
// clients and their objects.
func (f *File) Close() error {
	rm := f.open.rm
	rm.mu.Lock()
	defer rm.mu.Unlock()
	if f.closed {
		return unix.EBADF
	}
	f.closed = true
	if f.open.descriptors--; f.open.descriptors > 0 {
		return nil
	}
	for h, c := range rm.clients {
		if c.owner == f.open {
			rm.free(c, c.objects[h])
			delete(rm.clients, h)
		}
	}
	return nil
}

// Ioctl implements nvrm.Ioctler.
func (f *File) Ioctl(request uint32, arg []byte) error {
	if errno := f.ioctl(fusedev.Memory(os.Getpid()), request, arg); errno != 0 {
		return errno
	}
	return nil
}

// ioctl is a call by a process with the memory mem. Like the driver it looks at the number
// and the size and ignores the magic. An unknown number or size is EINVAL; every other
// mistake is reported by the status.
func (f *File) ioctl(mem fusedev.Memory, request uint32, arg []byte) unix.Errno {
	nr, size := request&0xff, request>>16&0x3fff
	if int(size) > len(arg) {
		return unix.EFAULT
	}
	var (
		call Call
		at   int // offset of the status
		do   func() nvrm.Status
	)
	switch {
	case nr == nvgpu.NV_ESC_RM_CONTROL && size == 32:
		// NVOS54_PARAMETERS: hClient 0, hObject 4, cmd 8, flags 12, params 16, paramsSize 24, status 28.
		call, at = Control(le.Uint32(arg[8:])), 28
		do = func() nvrm.Status { return f.open.control(mem, arg) }
	case nr == nvgpu.NV_ESC_RM_ALLOC && size == 32:
		// NVOS21_PARAMETERS: hRoot 0, hObjectParent 4, hObjectNew 8, hClass 12, pAllocParms 16, paramsSize 24, status 28.
		call, at = Alloc(le.Uint32(arg[12:])), 28
		do = func() nvrm.Status { return f.open.alloc(mem, arg, le.Uint32(arg[24:])) }
	case nr == nvgpu.NV_ESC_RM_ALLOC && size == 48:
		// NVOS64_PARAMETERS: the same to 16, pRightsRequested 24, paramsSize 32, flags 36, status 40.
		call, at = Alloc(le.Uint32(arg[12:])), 40
		do = func() nvrm.Status { return f.open.alloc(mem, arg, le.Uint32(arg[32:])) }
	case nr == nvgpu.NV_ESC_RM_FREE && size == 16:
		// NVOS00_PARAMETERS: hRoot 0, hObjectParent 4, hObjectOld 8, status 12.
		call, at = Free(), 12
		do = func() nvrm.Status { return f.open.freeObject(arg) }
	case nr == nvgpu.NV_ESC_RM_SHARE && size == 24:
		// NVOS57_PARAMETERS: hClient 0, hObject 4, sharePolicy 8, status 20.
		call, at = Share(), 20
		do = func() nvrm.Status { return f.open.share(arg) }
	default:
		return unix.EINVAL
	}
	status, errno := f.open.rm.injectFault(call)
	if errno != 0 {
		return errno
	}
	f.open.rm.mu.Lock()
	defer f.open.rm.mu.Unlock()
	if f.closed {
		return unix.EBADF
	}
	if status == nvrm.OK {
		status = do()
	}
	le.PutUint32(arg[at:], uint32(status))
	return 0
}

// client returns the client with handle h if this file owns it. The status for a client of
// another file is ErrInvalidClient (rmclientValidate_IMPL), that for a handle without a
// client is unknown.
func (f *openFile) client(h nvrm.Handle, unknown nvrm.Status) (*client, nvrm.Status) {
	c := f.rm.clients[h]
	switch {
	case c == nil:
		return nil, unknown
	case c.owner != f:
		return nil, nvrm.ErrInvalidClient
	}
	return c, nvrm.OK
}
