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

// row is one call of the conformance table and its expected result. The rows run in order,
// and each may depend on the ones before.
type row struct {
	name string
	by   role
	req  uint32
	arg  func(*run) []byte
	want string // in the format of run.result
	need need
}

// role says which process makes a call.
type role uint8

const (
	tester        role = iota // the test, on the thread that traces
	testerThread              // the test, on another thread
	target                    // a program with an enabled runtime
	noRuntime                 // a program that has only opened the device
	otherUser                 // a program of another user
	inheritor                 // a program that inherited a descriptor of the test
	otherDebugger             // a program that traces noRuntime, until it is killed
	withoutKFD                // a program that has not opened the device; as a caller: no call
)

// need says what the driver must offer for a row.
type need uint8

const (
	anyDriver     need = iota
	stock              // without our patch
	patch              // with our patch
	queues             // a GPU on which queues can be created
	patchedQueues      // both
)

// actors are the processes that take part.
type actors interface {
	caller(role) kfd.Ioctler
	pid(role) int
	// seize makes the test's thread trace a program.
	seize(role) error
	// otherSeizes makes otherDebugger trace noRuntime.
	otherSeizes() error
	kill(role)
}

// run is one run of the table.
type run struct {
	actors
	t        testing.TB
	gpu      uint32 // for queues; 0: none
	events   int    // write end of a pipe
	array    []byte // the array that the last argument points at
	pin      runtime.Pinner
	readOnly []byte // memory that cannot be written
}

// Conform runs the table against the device at path: the double, or a real driver. gpu is
// a GPU on which queues can be created as in the table, which only the double allows; 0
// means none. Rows that the driver cannot run are left out. Conform returns one line for
// each row that was run.
//
// It needs root, because it starts programs of another user. That user must be allowed to
// open the device.
func Conform(t *testing.T, path string, gpu uint32) []string {
	t.Helper()
	return runTable(t, gpu, func() (actors, error) { return newRealActors(t, path) })
}

// ConformInMemory runs the table against a driver that was made with World w.
func ConformInMemory(t *testing.T, k *KFD, w *World, gpu uint32) []string {
	t.Helper()
	return runTable(t, gpu, func() (actors, error) { return newSimActors(k, w), nil })
}

func runTable(t *testing.T, gpu uint32, start func() (actors, error)) []string {
	t.Helper()
	var lines []string
	done := make(chan struct{})
	go func() { // on a thread that exits afterwards, which ends its tracing
		defer close(done)
		runtime.LockOSThread()
		a, err := start()
		if err != nil {
			t.Error(err)
			return
		}
		r := &run{actors: a, t: t, gpu: gpu, events: -1}
		defer r.clean()
		if err := r.prepare(); err != nil {
			t.Error(err)
			return
		}
		offers := r.offers()
		for _, row := range table {
			if offers[row.need] {
				lines = append(lines, r.call(row))
			}
		}
	}()
	<-done
	return lines
}

// call makes the call of a row and returns the row's line.
func (r *run) call(row row) string {
	r.array = nil
	var arg []byte
	if row.arg != nil {
		arg = row.arg(r)
	}
	var n int
	var err error
	switch row.by {
	case testerThread:
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			n, err = r.caller(tester).Ioctl(row.req, arg)
		}()
		<-done
	case withoutKFD:
		return row.name
	default:
		n, err = r.caller(row.by).Ioctl(row.req, arg)
	}
	r.pin.Unpin()
	got := r.result(n, err)
	if got != row.want {
		r.t.Errorf("%s: got %s, want %s", row.name, got, row.want)
	}
	return row.name + ": " + got
}

// result formats what a call returned, and the results that it left in its array.
func (r *run) result(n int, err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	if err != nil {
		return err.Error()
	}
	got := []string{fmt.Sprint(n)}
	switch {
	case len(r.array)%entrySize == 0 && len(r.array) > 0:
		for i := 0; i < len(r.array); i += entrySize {
			got = append(got, statusName(int32(le.Uint32(r.array[i+8:]))))
		}
	case len(r.array) > 0 && len(r.array) < 64:
		for i := 0; i < len(r.array); i += 4 {
			got = append(got, markName(le.Uint32(r.array[i:])))
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

// prepare makes the pipe and the memory that arguments refer to.
func (r *run) prepare() (err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	unix.Close(pipe[0]) // events are not read
	r.events = pipe[1]
	r.readOnly, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	return err
}

func (r *run) clean() {
	_ = unix.Munmap(r.readOnly)
	unix.Close(r.events)
	r.kill(tester)
}

// offers says which rows can be run.
func (r *run) offers() map[need]bool {
	f, err := kfd.Probe(r.caller(tester))
	if err != nil {
		r.t.Error(err)
	}
	patched := f.Batch == nil
	return map[need]bool{
		anyDriver: true, stock: !patched, patch: patched, queues: r.gpu != 0, patchedQueues: patched && r.gpu != 0,
	}
}

// point pins an array until the call is over, and returns its address.
func (r *run) point(array []byte) uint64 {
	r.array = array
	if len(array) > 0 {
		r.pin.Pin(&array[0])
	}
	return address(array)
}
