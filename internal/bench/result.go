package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// Result is a whole run.
type Result struct {
	Started     time.Time    `json:"started"`
	Seconds     float64      `json:"seconds"` // of each measurement
	Machine     Machine      `json:"machine"`
	Calibration Calibration  `json:"calibration"`
	Cases       []CaseResult `json:"cases"`
}

// Machine is where it ran.
type Machine struct {
	GPU     string `json:"gpu"`
	UUID    string `json:"uuid,omitempty"`
	CUDA    string `json:"cuda,omitempty"`
	Driver  string `json:"driver,omitempty"` // the kernel module, in its own words
	Kernel  string `json:"kernel,omitempty"`
	CPUs    int    `json:"cpus"`
	PyTorch string `json:"pytorch,omitempty"`
}

// CaseResult is one case: why it was skipped, or its phases, all those before an
// error included.
type CaseResult struct {
	Name    string       `json:"name"`
	About   string       `json:"about"`
	Skipped string       `json:"skipped,omitempty"`
	Error   string       `json:"error,omitempty"`
	Phases  []Phase      `json:"phases,omitempty"`
	Pause   *PauseResult `json:"pause,omitempty"`
}

// Phase is one measurement. "alone" is two: the first online client, then the
// first batch client.
type Phase struct {
	Name   string         `json:"name"`
	Online []OnlineResult `json:"online,omitempty"`
	Batch  []BatchResult  `json:"batch,omitempty"`

	Latency   *stats.Summary `json:"latency,omitempty"` // of all online clients' requests
	BatchRate float64        `json:"batch_per_s"`       // of all batch clients together
	Kept      *float64       `json:"kept,omitempty"`    // of the rate of one batch client alone
	VsAlone   *Ratios        `json:"vs_alone,omitempty"`
	VsNative  *Ratios        `json:"vs_native,omitempty"`
}

// OnlineResult is one client's latencies.
type OnlineResult struct {
	Name       string        `json:"name"`
	Latency    stats.Summary `json:"latency"`
	Unfinished int           `json:"unfinished,omitempty"`
	Seed       uint64        `json:"seed,omitempty"`
	SamplesUs  []float64     `json:"samples_us"`
	samples    []time.Duration
}

// BatchResult is one client's rate.
type BatchResult struct {
	Name string  `json:"name"`
	Rate float64 `json:"per_s"`
}

// Ratios compare two distributions.
type Ratios struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// PauseResult is what a pause cost.
type PauseResult struct {
	PauseCallUs    float64 `json:"pause_call_us"`
	StoppedAfterUs float64 `json:"stopped_after_us"` // last completion seen, from the call on; about a millisecond exact
	ResumeCallUs   float64 `json:"resume_call_us"`
}

// sum adds up what the clients did.
func (p *Phase) sum() {
	var all []time.Duration
	for _, o := range p.Online {
		all = append(all, o.samples...)
	}
	if len(p.Online) > 0 {
		s := stats.Summarize(all)
		p.Latency = &s
	}
	p.BatchRate = 0
	for _, b := range p.Batch {
		p.BatchRate += b.Rate
	}
}

// unfinished is how many requests were given up.
func (p *Phase) unfinished() int {
	n := 0
	for _, o := range p.Online {
		n += o.Unfinished
	}
	return n
}

func (c *CaseResult) phase(name string) *Phase {
	for i := range c.Phases {
		if c.Phases[i].Name == name {
			return &c.Phases[i]
		}
	}
	return nil
}

// compare fills in the ratios to alone and to native.
func (c *CaseResult) compare() {
	base, shared := c.phase(alone), c.phase(native)
	for i := range c.Phases {
		p := &c.Phases[i]
		if base != nil && p != base {
			p.VsAlone = ratios(p.Latency, base.Latency)
			if len(p.Batch) > 0 && base.BatchRate > 0 {
				kept := p.BatchRate / base.BatchRate
				p.Kept = &kept
			}
		}
		if shared != nil && p != shared && p != base {
			p.VsNative = ratios(p.Latency, shared.Latency)
		}
	}
}

// ratios is nil where there is nothing to compare.
func ratios(of, to *stats.Summary) *Ratios {
	if of == nil || to == nil || of.Count == 0 || to.Count == 0 {
		return nil
	}
	part := func(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }
	return &Ratios{P50: part(of.P50, to.P50), P90: part(of.P90, to.P90), P99: part(of.P99, to.P99), Max: part(of.Max, to.Max)}
}

// WriteJSON writes everything, samples included.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// thisMachine knows what the kernel tells; the GPU is told by a client.
func thisMachine() Machine {
	return Machine{
		Driver: firstLine("/proc/driver/nvidia/version"),
		Kernel: firstLine("/proc/sys/kernel/osrelease"),
		CPUs:   runtime.NumCPU(),
	}
}

// firstLine is empty where the file is not there.
func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.Join(strings.Fields(strings.TrimPrefix(line, "NVRM version:")), " ")
}
