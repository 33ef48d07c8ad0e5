package kfdtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// otherUID is the user of the program otherUser.
const otherUID = 65534

// realActors are real processes.
type realActors struct {
	file     *kfd.File
	lent     *os.File // another descriptor of the test, for inheritor
	programs map[role]*Program
}

func newRealActors(t testing.TB, path string) (actors, error) {
	a := &realActors{programs: make(map[role]*Program)}
	var err error
	if a.file, err = kfd.Open(path); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	a.lent = os.NewFile(uintptr(fd), path)
	for r, uid := range map[role]int{target: 0, noRuntime: 0, otherUser: otherUID, otherDebugger: 0} {
		a.programs[r] = Start(t, uid)
		if err := a.programs[r].Open(path); err != nil {
			return nil, fmt.Errorf("user %d opens the device: %w", uid, err)
		}
	}
	a.programs[inheritor] = Start(t, 0, a.lent)
	a.programs[withoutKFD] = Start(t, 0)
	return a, nil
}

func (a *realActors) caller(r role) kfd.Ioctler {
	switch r {
	case tester:
		return a.file
	case inheritor:
		return inherited{a.programs[inheritor]}
	}
	return a.programs[r]
}

// inherited is the descriptor that a program was started with.
type inherited struct{ p *Program }

func (i inherited) Ioctl(request uint32, arg []byte) (int, error) {
	return i.p.IoctlOn(3, request, arg)
}

func (a *realActors) pid(r role) int {
	if r == tester {
		return os.Getpid()
	}
	return a.programs[r].PID
}

func (a *realActors) seize(r role) error { return seize(a.pid(r)) }

func (a *realActors) otherSeizes() error { return a.programs[otherDebugger].Seize(a.pid(noRuntime)) }

func (a *realActors) kill(r role) {
	if r != tester {
		a.programs[r].Kill()
		return
	}
	a.lent.Close()
	a.file.Close()
}

// simActors are processes of a World, including the test itself.
type simActors struct {
	world *World
	files map[role]*File
}

func newSimActors(k *KFD, w *World) actors {
	a := &simActors{w, make(map[role]*File)}
	for _, r := range []role{tester, target, noRuntime, otherUser, inheritor, otherDebugger, withoutKFD} {
		uid := 0
		if r == otherUser {
			uid = otherUID
		}
		w.Start(a.pid(r), uid)
		if r != withoutKFD && r != inheritor {
			a.files[r] = k.Open(a.pid(r))
		}
	}
	return a
}

// pid returns a number that no thread of this process has.
func (a *simActors) pid(r role) int { return 5000000 + int(r) }

func (a *simActors) caller(r role) kfd.Ioctler {
	switch r {
	case tester:
		return a.files[tester] // called by the current thread
	case inheritor:
		return simCaller{a.files[tester], a.pid(inheritor)}
	}
	return simCaller{a.files[r], a.pid(r)}
}

// simCaller is a file used by the only thread of a simulated process.
type simCaller struct {
	f   *File
	pid int
}

func (s simCaller) Ioctl(request uint32, arg []byte) (int, error) {
	n, errno := s.f.ioctl(caller{pid: s.pid, tid: s.pid, memory: fusedev.Memory(os.Getpid())}, request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (a *simActors) trace(tid int, r role) error {
	if !a.world.Trace(tid, a.pid(r)) {
		return unix.EPERM
	}
	return nil
}

func (a *simActors) seize(r role) error { return a.trace(unix.Gettid(), r) }
func (a *simActors) otherSeizes() error { return a.trace(a.pid(otherDebugger), noRuntime) }

func (a *simActors) kill(r role) {
	a.world.Kill(a.pid(r))
	if r == otherDebugger {
		a.world.Trace(0, a.pid(noRuntime))
	}
}
