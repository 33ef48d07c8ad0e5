package bench

import (
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"
)

// Message is one line of JSON from a client to the harness. A client sends Ready
// once. Then a batch client sends its progress ten times a second, and reads "work" and
// "rest"; an online client reads "start", or "start random" for random arrivals, and
// answers with its samples, any number of times. Both end when they read "quit" or the
// end of their input.
type Message struct {
	Ready bool   `json:"ready,omitempty"`
	PID   int    `json:"pid,omitempty"`
	GPU   string `json:"gpu,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	CUDA  string `json:"cuda,omitempty"` // newest version that the driver supports
	HIP   string `json:"hip,omitempty"`  // version of AMD's runtime
	Arch  string `json:"arch,omitempty"` // the target of the kernels, such as gfx942
	// Opened is when giveway-bench had opened the GPU and had not launched a kernel yet.
	Opened time.Time `json:"opened,omitzero"`

	Calibration *Calibration `json:"calibration,omitempty"`
	Progress    *Progress    `json:"progress,omitempty"`
	Answered    *Answered    `json:"answered,omitempty"`
	Checksum    string       `json:"checksum,omitempty"` // of work that is the same each time
	Error       string       `json:"error,omitempty"`
}

// Progress is the progress of a batch client. Times are of its own monotonic clock.
type Progress struct {
	At   time.Duration `json:"at_ns"`
	Done int64         `json:"done"`
	Idle time.Duration `json:"idle_ns"` // since the last completion
}

// Answered is the latencies that an online client measured in one run.
type Answered struct {
	SamplesUs []float64 `json:"samples_us"`
	// ArrivedUs is when each of these requests arrived, since the start of the run. Only the
	// PyTorch client says it.
	ArrivedUs []float64 `json:"arrived_us,omitempty"`
	// Unanswered counts requests that arrived and were given up after the grace time.
	Unanswered int           `json:"unfinished,omitempty"`
	Took       time.Duration `json:"took_ns"`
	Seed       uint64        `json:"seed,omitempty"`
}

// skip removes the requests that arrived before d, but not all. Without the times of arrival it
// removes none.
func (a *Answered) skip(d time.Duration) {
	first, _ := slices.BinarySearch(a.ArrivedUs, us(d))
	if first == 0 || first == len(a.ArrivedUs) || len(a.ArrivedUs) != len(a.SamplesUs) {
		return
	}
	a.ArrivedUs, a.SamplesUs = a.ArrivedUs[first:], a.SamplesUs[first:]
	a.Took -= d
}

// Calibration is how long the kernels take per iteration: Full for the grid of
// batch kernels, which fills the GPU, and Tiny for that of online kernels.
type Calibration struct {
	Full *Shape `json:"full,omitempty"`
	Tiny *Shape `json:"tiny,omitempty"`
}

// Shape is the calibration of one grid.
type Shape struct {
	Blocks         int     `json:"blocks"`
	NsPerIteration float64 `json:"ns_per_iteration"`
	OverheadUs     float64 `json:"overhead_us"`
	Residual       float64 `json:"residual"`
}

// Writer sends messages. Goroutines may share one.
type Writer struct {
	mu sync.Mutex
	to *json.Encoder
}

// NewWriter returns a Writer to a stream.
func NewWriter(to io.Writer) *Writer { return &Writer{to: json.NewEncoder(to)} }

// Send writes a message as one line, in one call.
func (w *Writer) Send(m Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Encode(m)
}
