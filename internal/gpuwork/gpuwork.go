// Package gpuwork is the work of giveway-bench on a GPU: kernels of a known length on
// streams, events, and a word that host and GPU share. internal/cuda and internal/hip
// implement it for the two vendors.
//
// It is not a general binding: a process opens one GPU. A GPU belongs to one thread, so
// the caller locks its goroutine to its thread before it opens the GPU and makes all calls
// from there.
package gpuwork

import (
	"fmt"
	"sync/atomic"
	"time"
)

// BlockThreads is the number of threads in a block of the spin kernel.
const BlockThreads = 256

// Sync is how a thread waits for the GPU. The values are those of CUDA and HIP, which
// agree.
type Sync uint32

const (
	Spin  Sync = 0x01 // has the lowest latency and uses a CPU
	Block Sync = 0x04 // uses no CPU
)

// Info describes a GPU.
type Info struct {
	Name string
	UUID string // as the vendor's tools write it
	// CUDA and HIP are the version of the runtime that is in use; the other is empty.
	CUDA, HIP string
	Arch      string // the target that kernels were compiled for, if the runtime says it
}

// GPU is an open GPU, which stays open until the process ends.
type GPU interface {
	Info() Info
	// FullGrid returns the number of blocks of the spin kernel that fill the GPU twice.
	FullGrid() (int, error)
	// NewStream makes a stream, whose work runs in order and does not wait for that of
	// other streams.
	NewStream() (Stream, error)
	// NewEvent makes an event. An event with timing costs a little more to record;
	// waiting for an event without timing uses no CPU.
	NewEvent(timing bool) (Event, error)
	// NewWord makes a word of host memory that the GPU can read, with value 0.
	NewWord() (*Word, error)
	// Spin returns a kernel whose threads compute for that many iterations.
	Spin(blocks int, iterations uint32) Kernel
	// Parked returns a kernel of one thread that waits until the word is not 0, or until
	// the timeout.
	Parked(w *Word, timeout time.Duration) Kernel
}

// Stream is a queue of work.
type Stream interface {
	Synchronize() error // waits until all work is done
}

// Kernel is a kernel with its arguments. It can be launched any number of times.
type Kernel interface {
	Launch(Stream) error // appends it to a stream
}

// Event marks a position in a stream.
type Event interface {
	Record(Stream) error   // moves it to the end of the stream
	Synchronize() error    // waits until the stream has passed it
	Passed() (bool, error) // reports whether the stream has passed it
	// MillisecondsSince returns the GPU's time between two events that have passed.
	MillisecondsSince(start Event) (float64, error)
}

// Word is four bytes of host memory that the GPU can read.
type Word struct {
	Host *atomic.Uint32
	GPU  uintptr // its address on the GPU
}

// Set stores a value. The GPU sees it about a microsecond later.
func (w *Word) Set(v uint32) { w.Host.Store(v) }

// Error is an error code of a runtime.
type Error struct {
	Call string // the function
	Code int
	Name string // the code's name in the header
	Text string
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: error %d", e.Call, e.Code)
	}
	text := fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code)
	if e.Text != e.Name { // HIP 5 has only the name for some codes
		text += ": " + e.Text
	}
	return text
}
