package fusedev

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Caller is the thread that makes a call.
type Caller struct {
	TID int
	UID int
	// Interrupted is closed when the thread has a signal. A call that waits may then return
	// EINTR. Until it returns, the thread cannot even be killed.
	Interrupted <-chan struct{}
}

// Device is a double of a driver.
type Device interface {
	Open(Caller) (File, unix.Errno)
}

// File is an open file of a Device.
type File interface {
	// Ioctl answers a call. arg has the length that the request states. A result of zero or
	// more is the return value of the call.
	Ioctl(c Caller, request uint32, arg []byte) (int32, unix.Errno)
	// Release is called when the last descriptor of the file is closed, including copies in
	// other processes.
	Release()
}

// Requests of the kernel that a file system of one file has to answer, from linux/fuse.h.
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseSetattr     = 4
	fuseOpen        = 14
	fuseRelease     = 18
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseIoctl       = 39
	fuseBatchForget = 42
)

const (
	headerIn  = 40 // len 0, opcode 4, unique 8, nodeid 16, uid 24, gid 28, pid 32
	headerOut = 16 // len 0, error 4, unique 8
	version   = 7
	minor     = 31
	attrSize  = 88 // struct fuse_attr: ino 0, mode 60, nlink 64
	forever   = 3600
	directIO  = 1 // FOPEN_DIRECT_IO
	buffer    = 1 << 17
	maxWrite  = 1 << 16
)

var le = binary.LittleEndian

// server answers the kernel's requests about one file.
type server struct {
	fuse   *os.File // /dev/fuse
	device Device

	mu      sync.Mutex
	files   map[uint64]File // by file handle
	last    uint64
	running map[uint64]chan struct{} // ioctls under way, by request id
}

// serve answers requests until the device is closed or the file system is unmounted.
func (s *server) serve() {
	buf := make([]byte, buffer)
	for {
		n, err := s.fuse.Read(buf)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
			continue // the caller has given up
		case err != nil:
			return
		case n >= headerIn:
			s.answer(buf[:n])
		}
	}
}

func (s *server) answer(msg []byte) {
	op, unique, in := le.Uint32(msg[4:]), le.Uint64(msg[8:]), msg[headerIn:]
	c := Caller{UID: int(le.Uint32(msg[24:])), TID: int(le.Uint32(msg[32:]))}
	switch op {
	case fuseForget, fuseBatchForget: // needs no answer
	case fuseInit:
		// fuse_init_out: major 0, minor 4, max_readahead 8, flags 12, max_write 20.
		out := make([]byte, 64)
		le.PutUint32(out[0:], version)
		le.PutUint32(out[4:], minor)
		le.PutUint32(out[8:], le.Uint32(in[8:]))
		le.PutUint32(out[20:], maxWrite)
		s.reply(unique, 0, out)
	case fuseGetattr, fuseSetattr:
		// fuse_attr_out: attr_valid 0, attr 16.
		out := make([]byte, 16+attrSize)
		le.PutUint64(out[0:], forever)
		le.PutUint64(out[16:], 1)
		le.PutUint32(out[16+60:], unix.S_IFREG|0o666)
		le.PutUint32(out[16+64:], 1)
		s.reply(unique, 0, out)
	case fuseOpen:
		s.open(unique, c)
	case fuseRelease:
		s.release(le.Uint64(in[0:]))
		s.reply(unique, 0, nil)
	case fuseInterrupt: // needs no answer; fuse_interrupt_in: unique 0
		s.interrupt(le.Uint64(in[0:]))
	case fuseIoctl:
		// A goroutine, so that a call that hangs does not block others.
		stop := make(chan struct{})
		c.Interrupted = stop
		s.mu.Lock()
		s.running[unique] = stop
		s.mu.Unlock()
		go s.ioctl(unique, c, append([]byte(nil), in...))
	default:
		s.reply(unique, unix.ENOSYS, nil)
	}
}

func (s *server) open(unique uint64, c Caller) {
	f, errno := s.device.Open(c)
	if errno != 0 {
		s.reply(unique, errno, nil)
		return
	}
	s.mu.Lock()
	s.last++
	s.files[s.last] = f
	fh := s.last
	s.mu.Unlock()
	// fuse_open_out: fh 0, open_flags 8.
	out := make([]byte, 16)
	le.PutUint64(out[0:], fh)
	le.PutUint32(out[8:], directIO)
	s.reply(unique, 0, out)
}

func (s *server) release(fh uint64) {
	s.mu.Lock()
	f := s.files[fh]
	delete(s.files, fh)
	s.mu.Unlock()
	if f != nil {
		f.Release()
	}
}

// interrupt tells a call that its thread has a signal. The call may have returned.
func (s *server) interrupt(unique uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stop := s.running[unique]; stop != nil {
		close(stop)
		delete(s.running, unique)
	}
}

// ioctl passes a call to the double.
func (s *server) ioctl(unique uint64, c Caller, in []byte) {
	// fuse_ioctl_in: fh 0, flags 8, cmd 12, arg 16, in_size 24, out_size 28, then the argument.
	request, inSize, outSize := le.Uint32(in[12:]), le.Uint32(in[24:]), le.Uint32(in[28:])
	s.mu.Lock()
	f := s.files[le.Uint64(in[0:])]
	s.mu.Unlock()
	if f == nil {
		s.reply(unique, unix.EBADF, nil)
		return
	}
	// A request that only reads has no input.
	arg := append(in[32:32+inSize], make([]byte, max(inSize, outSize)-inSize)...)
	result, errno := f.Ioctl(c, request, arg)
	s.mu.Lock()
	delete(s.running, unique)
	s.mu.Unlock()
	if errno != 0 {
		s.reply(unique, errno, nil)
		return
	}
	// fuse_ioctl_out: result 0, flags 4, in_iovs 8, out_iovs 12, then the argument.
	out := make([]byte, 16, 16+outSize)
	le.PutUint32(out, uint32(result))
	s.reply(unique, 0, append(out, arg[:outSize]...))
}

// reply answers a request. It fails without harm if the caller has given up.
func (s *server) reply(unique uint64, errno unix.Errno, body []byte) {
	out := make([]byte, headerOut, headerOut+len(body))
	le.PutUint32(out[0:], uint32(headerOut+len(body)))
	le.PutUint32(out[4:], -uint32(errno))
	le.PutUint64(out[8:], unique)
	_, _ = s.fuse.Write(append(out, body...))
}
