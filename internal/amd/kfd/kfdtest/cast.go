package kfdtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// otherUser is whose program the stranger is.
const otherUser = 65534

// hired is a cast of real programs, and the test.
type hired struct {
	file     *kfd.File
	lent     *os.File // another descriptor of ours, for the heir
	programs map[who]*Program
}

func hire(t testing.TB, path string) (cast, error) {
	h := &hired{programs: map[who]*Program{}}
	var err error
	if h.file, err = kfd.Open(path); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	h.lent = os.NewFile(uintptr(fd), path)
	for w, uid := range map[who]int{target: 0, bare: 0, stranger: otherUser, holder: 0} {
		h.programs[w] = Start(t, uid)
		if err := h.programs[w].Open(path); err != nil {
			return nil, fmt.Errorf("user %d opens the device: %w", uid, err)
		}
	}
	h.programs[heir] = Start(t, 0, h.lent)
	h.programs[nobody] = Start(t, 0)
	return h, nil
}

func (h *hired) of(w who) kfd.Ioctler {
	switch w {
	case self:
		return h.file
	case heir:
		return inherited{h.programs[heir]}
	}
	return h.programs[w]
}

// inherited is the descriptor that a program was started with.
type inherited struct{ p *Program }

func (i inherited) Ioctl(request uint32, arg []byte) (int, error) {
	return i.p.IoctlOn(3, request, arg)
}

func (h *hired) pid(w who) int {
	if w == self {
		return os.Getpid()
	}
	return h.programs[w].PID
}

func (h *hired) seize(w who) error { return seize(h.pid(w)) }
func (h *hired) holds() error      { return h.programs[holder].Seize(h.pid(bare)) }

func (h *hired) kill(w who) {
	if w != self {
		h.programs[w].Kill()
		return
	}
	h.lent.Close()
	h.file.Close()
}

// pretended is a cast of a World's processes, the test's own included.
type pretended struct {
	world *World
	files map[who]*File
}

func pretend(k *KFD, w *World) cast {
	p := &pretended{w, map[who]*File{}}
	for _, one := range []who{self, target, bare, stranger, heir, holder, nobody} {
		uid := 0
		if one == stranger {
			uid = otherUser
		}
		w.Start(p.pid(one), uid)
		if one != nobody && one != heir {
			p.files[one] = k.open(p.pid(one))
		}
	}
	return p
}

// pid is a number that is no thread's of this process.
func (p *pretended) pid(w who) int { return 5000000 + int(w) }

func (p *pretended) of(w who) kfd.Ioctler {
	switch w {
	case self:
		return p.files[self] // by the thread that calls
	case heir:
		return borrowed{p.files[self], p.pid(heir)}
	}
	return borrowed{p.files[w], p.pid(w)}
}

// borrowed is a file used by the one thread of a process.
type borrowed struct {
	f   *File
	pid int
}

func (b borrowed) Ioctl(request uint32, arg []byte) (int, error) {
	n, errno := b.f.ioctl(caller{pid: b.pid, tid: b.pid, memory: fusedev.Memory(os.Getpid())}, request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (p *pretended) trace(tid int, w who) error {
	if !p.world.Trace(tid, p.pid(w)) {
		return unix.EPERM
	}
	return nil
}

func (p *pretended) seize(w who) error { return p.trace(unix.Gettid(), w) }
func (p *pretended) holds() error      { return p.trace(p.pid(holder), bare) }

func (p *pretended) kill(w who) {
	p.world.Kill(p.pid(w))
	if w == holder {
		p.world.Trace(0, p.pid(bare))
	}
}
