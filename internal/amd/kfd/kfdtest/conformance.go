package kfdtest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// A row of the table is one call and what has to come of it. The rows are in
// order: what one does the next ones meet.
type row struct {
	name string
	by   who
	req  uint32
	arg  func(*scene) []byte
	want string // what result writes
	need need
}

// who makes a call.
type who uint8

const (
	self     who = iota // the test, by the thread that traces
	thread              // the test, by another thread
	target              // a program whose runtime is enabled
	bare                // a program that has only opened the device
	stranger            // another user's program
	heir                // a program that inherited the test's descriptor
	holder              // a program that traces bare, until it is killed
	nobody              // not a call: something else happens
)

// need is what the driver must have for a row.
type need uint8

const (
	always need = iota
	stock       // not our patch
	patch       // our patch
	queues      // a GPU, or what makes queues as if there were one
	patchedQueues
)

// cast is who takes part: programs, or what stands for them.
type cast interface {
	// of is the one that makes a call.
	of(who) kfd.Ioctler
	pid(who) int
	// seize has the test's thread trace a program; holds has holder trace bare.
	seize(who) error
	holds() error
	kill(who)
}

// scene is a run of the table.
type scene struct {
	cast
	t        testing.TB
	gpu      uint32 // for queues; 0: there is none
	events   int    // a pipe's end
	array    []byte // that the last argument points at
	pin      runtime.Pinner
	readOnly []byte // memory that can only be read
}

// Conform runs the table against the device at path: the double's, or a real
// driver's. gpu is one on which queues can be made as the table does, which only the
// double lets be done; 0: there is none. Rows that need what the driver has not are
// left out. It returns what was seen, one line a row.
//
// It has to be root, for it makes programs of another user; that one has to be
// allowed to open the device.
func Conform(t *testing.T, path string, gpu uint32) []string {
	t.Helper()
	return run(t, gpu, func() (cast, error) { return hire(t, path) })
}

// ConformInMemory runs the table against a driver that was made with that world.
func ConformInMemory(t *testing.T, k *KFD, w *World, gpu uint32) []string {
	t.Helper()
	return run(t, gpu, func() (cast, error) { return pretend(k, w), nil })
}

func run(t *testing.T, gpu uint32, gather func() (cast, error)) []string {
	t.Helper()
	var seen []string
	done := make(chan struct{})
	go func() { // a thread of its own, which ends and so lets go what it traced
		defer close(done)
		runtime.LockOSThread()
		c, err := gather()
		if err != nil {
			t.Error(err)
			return
		}
		s := &scene{cast: c, t: t, gpu: gpu, events: -1}
		defer s.clean()
		if err := s.prepare(); err != nil {
			t.Error(err)
			return
		}
		have := s.have()
		for _, r := range table {
			if have[r.need] {
				seen = append(seen, s.play(r))
			}
		}
	}()
	<-done
	return seen
}

// play makes the call of a row, and returns what came of it.
func (s *scene) play(r row) string {
	s.array = nil
	var arg []byte
	if r.arg != nil {
		arg = r.arg(s)
	}
	var n int
	var err error
	switch r.by {
	case thread:
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			n, err = s.of(self).Ioctl(r.req, arg)
		}()
		<-done
	case nobody:
		return r.name
	default:
		n, err = s.of(r.by).Ioctl(r.req, arg)
	}
	s.pin.Unpin()
	got := s.result(n, err)
	if got != r.want {
		s.t.Errorf("%s: %s, want %s", r.name, got, r.want)
	}
	return r.name + ": " + got
}

// result writes what a call returned, and what it left in the array that it was
// given.
func (s *scene) result(n int, err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	if err != nil {
		return err.Error()
	}
	got := []string{fmt.Sprint(n)}
	switch {
	case len(s.array)%entrySize == 0 && len(s.array) > 0:
		for i := 0; i < len(s.array); i += entrySize {
			got = append(got, statusName(int32(le.Uint32(s.array[i+8:]))))
		}
	case len(s.array) > 0 && len(s.array) < 64:
		for i := 0; i < len(s.array); i += 4 {
			got = append(got, markName(le.Uint32(s.array[i:])))
		}
	}
	return strings.Join(got, " ")
}

func statusName(status int32) string {
	if status == 0 {
		return "ok"
	}
	return unix.ErrnoName(unix.Errno(-status))
}

func markName(id uint32) string {
	switch {
	case id&idError != 0:
		return "error"
	case id&idInvalid != 0:
		return "invalid"
	}
	return "ok"
}

// prepare makes what arguments are about.
func (s *scene) prepare() (err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	unix.Close(pipe[0]) // nobody reads
	s.events = pipe[1]
	s.readOnly, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	return err
}

func (s *scene) clean() {
	_ = unix.Munmap(s.readOnly)
	unix.Close(s.events)
	s.kill(self)
}

// have finds out what rows can be run here.
func (s *scene) have() map[need]bool {
	f, err := kfd.Probe(s.of(self))
	if err != nil {
		s.t.Error(err)
	}
	patched := f.Batch == nil
	return map[need]bool{
		always: true, stock: !patched, patch: patched, queues: s.gpu != 0, patchedQueues: patched && s.gpu != 0,
	}
}

// point keeps what an argument points at in place until the call is over.
func (s *scene) point(array []byte) uint64 {
	s.array = array
	if len(array) > 0 {
		s.pin.Pin(&array[0])
	}
	return address(array)
}
