package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Message is one line, in JSON, from a client to the harness. A client says
// "ready" once; then a batch client tells its progress ten times a second, and an
// online client its samples after each "start" that it reads. Both end at "quit"
// or at the end of their input.
type Message struct {
	Ready bool   `json:"ready,omitempty"`
	PID   int    `json:"pid,omitempty"`
	GPU   string `json:"gpu,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	CUDA  string `json:"cuda,omitempty"` // the newest that the driver supports

	Calibration *Calibration `json:"calibration,omitempty"`
	Progress    *Progress    `json:"progress,omitempty"`
	Answered    *Answered    `json:"answered,omitempty"`
	Error       string       `json:"error,omitempty"`
}

// Progress is how far a batch client has come. Times are of its own monotonic
// clock.
type Progress struct {
	At   time.Duration `json:"at_ns"`
	Done int64         `json:"done"`
	Idle time.Duration `json:"idle_ns"` // since the last completion
}

// Answered is what an online client measured in one run.
type Answered struct {
	SamplesUs []float64 `json:"samples_us"`
	// Unfinished requests had arrived and were given up at the end of the grace.
	Unfinished int           `json:"unfinished,omitempty"`
	Took       time.Duration `json:"took_ns"`
	Seed       uint64        `json:"seed,omitempty"`
}

// Calibration is how long the two kernels take per iteration.
type Calibration struct {
	Full *Shape `json:"full,omitempty"`
	Tiny *Shape `json:"tiny,omitempty"`
}

// Shape is one grid's calibration.
type Shape struct {
	Blocks         int     `json:"blocks"`
	NsPerIteration float64 `json:"ns_per_iteration"`
	OverheadUs     float64 `json:"overhead_us"`
	Residual       float64 `json:"residual"`
}

// Writer sends messages; several goroutines may share one.
type Writer struct {
	mu sync.Mutex
	to io.Writer
}

// NewWriter makes a Writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Send writes one line at once.
func (w *Writer) Send(m Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.to.Write(append(line, '\n'))
	return err
}
