package nvrmtest

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// What the kernel asks a FUSE file system, from linux/fuse.h. A file system of
// one file needs no more.
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseSetattr     = 4
	fuseOpen        = 14
	fuseRelease     = 18
	fuseInit        = 26
	fuseIoctl       = 39
	fuseBatchForget = 42
)

const (
	fuseHeaderIn  = 40 // len 0, opcode 4, unique 8, nodeid 16, uid 24, gid 28, pid 32
	fuseHeaderOut = 16 // len 0, error 4, unique 8
	fuseVersion   = 7
	fuseMinor     = 31
	fuseAttrSize  = 88 // struct fuse_attr: ino 0, mode 60, nlink 64
	fuseForever   = 3600
	fuseDirectIO  = 1 // FOPEN_DIRECT_IO
	fuseBuffer    = 1 << 17
	fuseMaxWrite  = 1 << 16
)

// server answers the kernel's questions about one file. Each open file of it is
// a File of the RM.
type server struct {
	dev *os.File // /dev/fuse
	rm  *RM

	mu    sync.Mutex
	files map[uint64]*File // by the handle that the kernel was given
	last  uint64
}

// serve answers until the device is closed or the file system is no more.
func (s *server) serve() {
	buf := make([]byte, fuseBuffer)
	for {
		n, err := s.dev.Read(buf)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
			continue // whoever asked has given up
		case err != nil:
			return
		case n >= fuseHeaderIn:
			s.answer(buf[:n])
		}
	}
}

func (s *server) answer(msg []byte) {
	op, unique, pid, in := le.Uint32(msg[4:]), le.Uint64(msg[8:]), le.Uint32(msg[32:]), msg[fuseHeaderIn:]
	switch op {
	case fuseForget, fuseBatchForget: // wants no answer
	case fuseInit:
		// fuse_init_out: major 0, minor 4, max_readahead 8, flags 12, max_write 20.
		out := make([]byte, 64)
		le.PutUint32(out[0:], fuseVersion)
		le.PutUint32(out[4:], fuseMinor)
		le.PutUint32(out[8:], le.Uint32(in[8:]))
		le.PutUint32(out[20:], fuseMaxWrite)
		s.reply(unique, 0, out)
	case fuseGetattr, fuseSetattr:
		// fuse_attr_out: attr_valid 0, attr 16.
		out := make([]byte, 16+fuseAttrSize)
		le.PutUint64(out[0:], fuseForever)
		le.PutUint64(out[16:], 1)
		le.PutUint32(out[16+60:], unix.S_IFREG|0o666)
		le.PutUint32(out[16+64:], 1)
		s.reply(unique, 0, out)
	case fuseOpen:
		// fuse_open_out: fh 0, open_flags 8.
		out := make([]byte, 16)
		le.PutUint64(out[0:], s.open())
		le.PutUint32(out[8:], fuseDirectIO)
		s.reply(unique, 0, out)
	case fuseRelease:
		s.release(le.Uint64(in[0:]))
		s.reply(unique, 0, nil)
	case fuseIoctl:
		// fuse_ioctl_in: fh 0, flags 8, cmd 12, arg 16, in_size 24, out_size 28, then the argument.
		// One that hangs holds up nobody else.
		request := append([]byte(nil), in...)
		go s.ioctl(unique, int(pid), request)
	default:
		s.reply(unique, unix.ENOSYS, nil)
	}
}

func (s *server) open() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.files[s.last] = s.rm.Open()
	return s.last
}

// release is called when the last descriptor of an open file is closed, copies
// in other processes included.
func (s *server) release(fh uint64) {
	s.mu.Lock()
	f := s.files[fh]
	delete(s.files, fh)
	s.mu.Unlock()
	if f != nil {
		_ = f.Close() // it was open
	}
}

// ioctl has the RM do what a thread asks. The kernel has copied the argument, by
// the size in the request; what it points at is fetched from the thread's memory.
func (s *server) ioctl(unique uint64, pid int, in []byte) {
	s.mu.Lock()
	f := s.files[le.Uint64(in[0:])]
	s.mu.Unlock()
	request, inSize, outSize := le.Uint32(in[12:]), le.Uint32(in[24:]), le.Uint32(in[28:])
	arg := in[32 : 32+inSize]
	if f == nil {
		s.reply(unique, unix.EBADF, nil)
		return
	}
	if errno := f.ioctl(processMemory(pid), request, arg); errno != 0 {
		s.reply(unique, errno, nil)
		return
	}
	// fuse_ioctl_out: result 0, flags 4, in_iovs 8, out_iovs 12, then the argument.
	s.reply(unique, 0, append(make([]byte, 16), arg[:min(outSize, inSize)]...))
}

// reply answers one question. That nobody waits for it any more is no matter.
func (s *server) reply(unique uint64, errno unix.Errno, body []byte) {
	out := make([]byte, fuseHeaderOut, fuseHeaderOut+len(body))
	le.PutUint32(out[0:], uint32(fuseHeaderOut+len(body)))
	le.PutUint32(out[4:], -uint32(errno))
	le.PutUint64(out[8:], unique)
	_, _ = s.dev.Write(append(out, body...))
}
