package bench

import (
	"cmp"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// Result is the result of a whole run. The JSON files under results/ have this form.
type Result struct {
	Started     time.Time    `json:"started"`
	Seconds     float64      `json:"seconds"` // of each measurement
	Machine     Machine      `json:"machine"`
	Calibration Calibration  `json:"calibration"`
	Cases       []CaseResult `json:"cases"`
}

// Machine describes the machine that the benchmark ran on.
type Machine struct {
	GPU     string `json:"gpu"`
	UUID    string `json:"uuid,omitempty"`
	CUDA    string `json:"cuda,omitempty"`
	HIP     string `json:"hip,omitempty"`
	Arch    string `json:"arch,omitempty"`
	Driver  string `json:"driver,omitempty"` // as /proc/driver/nvidia/version has it, or the version of amdgpu
	Kernel  string `json:"kernel,omitempty"`
	CPUs    int    `json:"cpus"`
	PyTorch string `json:"pytorch,omitempty"`
}

// CaseResult is the result of one case: the reason why it was skipped, or its
// phases. After an error it has the phases before the error.
type CaseResult struct {
	Name    string       `json:"name"`
	About   string       `json:"about"`
	Light   bool         `json:"light,omitempty"` // see Case
	Mixed   bool         `json:"mixed,omitempty"` // the batch clients do different work
	Skipped string       `json:"skipped,omitempty"`
	Error   string       `json:"error,omitempty"`
	Notes   []string     `json:"notes,omitempty"` // what was not measured, and why
	Phases  []Phase      `json:"phases,omitempty"`
	Pause   *PauseResult `json:"pause,omitempty"`

	Targets []TargetResult `json:"targets,omitempty"`
}

// Phase is one measurement. Phase "alone" is several: the first online client, then each
// kind of batch client.
type Phase struct {
	Name      string         `json:"name"`
	Situation string         `json:"situation,omitempty"` // the end of the name
	Online    []OnlineResult `json:"online,omitempty"`
	Batch     []BatchResult  `json:"batch,omitempty"`

	Latency   *stats.Summary `json:"latency,omitempty"` // of the requests of all online clients
	BatchRate float64        `json:"batch_per_s"`       // of all batch clients together
	Kept      *float64       `json:"kept,omitempty"`    // stats.WorkKept of the batch clients
	VsAlone   *Ratios        `json:"vs_alone,omitempty"`
	VsNative  *Ratios        `json:"vs_native,omitempty"`

	// BatchVsNative is the batch rate over that of phase native. If the clients do
	// different work, it is the mean of each client's rate over its own.
	BatchVsNative *float64 `json:"batch_vs_native,omitempty"`

	Late  *LateResult  `json:"late,omitempty"`  // nil: no request entered late, or it is not known
	Ahead *AheadResult `json:"ahead,omitempty"` // nil: never, or it is not known
	Lost  *float64     `json:"lost,omitempty"`  // share of the time that the device lost in context switches; nil: not known

	Rounds []RoundPart `json:"rounds,omitempty"` // the measurements that were merged into it, in order

	learn time.Duration // Change.Learn
}

// RoundPart is a phase in one round. Those of other phases in the same round are neighbours in time.
type RoundPart struct {
	P50   time.Duration `json:"p50_ns,omitempty"`
	P99   time.Duration `json:"p99_ns,omitempty"`
	Batch float64       `json:"batch_per_s,omitempty"`
}

func newPhase(name, situation string) Phase {
	if situation != "" {
		name += ", " + situation
	}
	return Phase{Name: name, Situation: situation}
}

// OnlineResult is the latencies of one client.
type OnlineResult struct {
	Name       string        `json:"name"`
	Latency    stats.Summary `json:"latency"`
	Rate       float64       `json:"per_s"` // of answers
	Unanswered int           `json:"unfinished,omitempty"`
	Seed       uint64        `json:"seed,omitempty"`
	SamplesUs  []float64     `json:"samples_us"`
}

// BatchResult is the rate of one client.
type BatchResult struct {
	Name      string  `json:"name"`
	Rate      float64 `json:"per_s"`
	AloneRate float64 `json:"alone_per_s,omitempty"` // of a client that does the same work

	VsNative *float64 `json:"vs_native,omitempty"` // the rate over that of the same client in phase native
}

// Ratios compares two latency distributions.
type Ratios struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// PauseResult is how long pausing and resuming took.
type PauseResult struct {
	PauseCallUs    float64 `json:"pause_call_us"`
	StoppedAfterUs float64 `json:"stopped_after_us"` // from the call to the last completion; accurate to about 1 ms
	ResumeCallUs   float64 `json:"resume_call_us"`
}

func newOnlineResult(name string, a *Answered) OnlineResult {
	o := OnlineResult{Name: name, SamplesUs: a.SamplesUs, Unanswered: a.Unanswered, Seed: a.Seed}
	o.summarize()
	if a.Took > 0 {
		o.Rate = float64(len(a.SamplesUs)) / a.Took.Seconds()
	}
	return o
}

func (o *OnlineResult) summarize() { o.Latency = stats.Summarize(o.durations()) }

func (o *OnlineResult) durations() []time.Duration {
	all := make([]time.Duration, len(o.SamplesUs))
	for i, s := range o.SamplesUs {
		all[i] = time.Duration(s * 1e3)
	}
	return all
}

// sum adds up the results of the clients.
func (p *Phase) sum() {
	var all []time.Duration
	for i := range p.Online {
		all = append(all, p.Online[i].durations()...)
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

func (p *Phase) answersPerSecond() float64 {
	sum := 0.0
	for _, o := range p.Online {
		sum += o.Rate
	}
	return sum
}

func (p *Phase) unanswered() int {
	n := 0
	for _, o := range p.Online {
		n += o.Unanswered
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

// before returns the last phase with a name before phase i, which is closest to it in time, or the
// first with that name.
func (c *CaseResult) before(i int, name string) *Phase {
	for j := i - 1; j >= 0; j-- {
		if c.Phases[j].Name == name {
			return &c.Phases[j]
		}
	}
	return c.phase(name)
}

// aloneFor returns the phase alone that phase i is compared with, or nil.
func (c *CaseResult) aloneFor(i int) *Phase {
	return cmp.Or(c.before(i, newPhase(alone, c.Phases[i].Situation).Name), c.before(i, alone))
}

// compare fills in the ratios to phases alone and native in the same situation, and the
// work kept. Each batch client fills the GPU when alone, unless the case is light.
func (c *CaseResult) compare() {
	for i := range c.Phases {
		p := &c.Phases[i]
		if p.Name == alone || p.Name == newPhase(alone, randomArrivals).Name {
			continue
		}
		if base := c.aloneFor(i); base != nil {
			p.VsAlone = newRatios(p.Latency, base.Latency)
			if p.VsAlone != nil && p.Situation == onAndOff && len(p.Rounds) > 0 && len(p.Rounds) == len(base.Rounds) {
				p.VsAlone.P50 = medianRatio(p.Rounds, base.Rounds)
			}
		}
		p.Kept = c.kept(p)
		if shared := c.before(i, newPhase(native, p.Situation).Name); shared != nil && shared != p {
			p.VsNative = newRatios(p.Latency, shared.Latency)
			p.BatchVsNative = c.batchRatio(p, shared)
		}
	}
}

// medianRatio returns the median of the ratios of the P50 in each round. Where the speed of the CPUs
// changes between rounds, the P50 of all requests together is that of the faster or the slower
// rounds, and the ratio of two of those may be that of the speeds.
func medianRatio(of, to []RoundPart) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = stats.Ratio(of[i].P50, max(to[i].P50, 1))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// kept returns nil where the work kept is not known.
func (c *CaseResult) kept(p *Phase) *float64 {
	var work []stats.Work
	for _, b := range p.Batch {
		work = append(work, stats.Work{Rate: b.Rate, AloneRate: b.AloneRate, AloneUse: 1})
	}
	if kept, _ := stats.WorkKept(work); kept >= 0 && !c.Light { // not NaN
		return &kept
	}
	return nil
}

// batchRatio fills in VsNative of the batch clients and returns BatchVsNative of the phase,
// or nil where it has none.
func (c *CaseResult) batchRatio(p, base *Phase) *float64 {
	if len(p.Batch) == 0 || len(p.Batch) != len(base.Batch) {
		return nil
	}
	sum := 0.0 // NaN where a client did nothing in phase native
	for i := range p.Batch {
		ratio := stats.Ratio(p.Batch[i].Rate, base.Batch[i].Rate)
		p.Batch[i].VsNative = number(ratio)
		sum += ratio
	}
	if c.Mixed {
		return number(sum / float64(len(p.Batch)))
	}
	return number(stats.Ratio(p.BatchRate, base.BatchRate))
}

// number returns nil for what JSON cannot hold.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// newRatios returns nil if there is nothing to compare.
func newRatios(of, to *stats.Summary) *Ratios {
	if of == nil || to == nil || of.Count == 0 || to.Count == 0 {
		return nil
	}
	ratio := func(a, b time.Duration) float64 { return stats.Ratio(a, max(b, 1)) }
	return &Ratios{P50: ratio(of.P50, to.P50), P90: ratio(of.P90, to.P90), P99: ratio(of.P99, to.P99), Max: ratio(of.Max, to.Max)}
}

// WriteJSON writes everything, with all samples.
func (r *Result) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// describe adds what a client reports about its GPU.
func (m *Machine) describe(ready Message) {
	m.GPU, m.UUID, m.CUDA, m.HIP, m.Arch = ready.GPU, ready.UUID, ready.CUDA, ready.HIP, ready.Arch
	if ready.HIP == "" {
		return
	}
	m.Driver = "amdgpu of Linux " + m.Kernel
	if version := firstLine("/sys/module/amdgpu/version"); version != "" { // ROCm's own module has one
		m.Driver = "amdgpu " + version
	}
}

// thisMachine returns what the kernel reports. A client reports the GPU.
func thisMachine() Machine {
	return Machine{
		Driver: firstLine("/proc/driver/nvidia/version"),
		Kernel: firstLine("/proc/sys/kernel/osrelease"),
		CPUs:   runtime.NumCPU(),
	}
}

// firstLine returns an empty string if the file cannot be read.
func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return cleanDriver(line)
}

// cleanDriver returns a version of NVIDIA's driver without the words that each has.
func cleanDriver(line string) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(line, "NVRM version:")), " ")
}
