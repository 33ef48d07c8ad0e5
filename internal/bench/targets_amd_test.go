package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// equalTimes returns a summary of equal times.
func equalTimes(d time.Duration) *stats.Summary {
	return &stats.Summary{Count: 5, Mean: d, P50: d, P95: d, P99: d, Max: d}
}

// writeAMDResults writes the files that amd-tests.sh leaves.
func writeAMDResults(t *testing.T, gpu string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	m := Machine{GPU: gpu, HIP: "6.3", Arch: "gfx942", Driver: "amdgpu 6.10", Kernel: "6.8"}
	stops := &StopsResult{Machine: m, Driver: "KFD 1.17, patched", Rows: []StopsRow{
		{Way: "stock suspend", Asked: 1, Queues: 1, Stop: equalTimes(time.Millisecond), Start: equalTimes(time.Millisecond), Stopped: true, Resumed: true},
		{Way: BatchWay, Asked: 1, Queues: 1, Stop: equalTimes(200 * time.Microsecond), Start: equalTimes(400 * time.Microsecond), Stopped: true, Resumed: true},
		{Way: BatchWay, Asked: 10, Queues: 10, Stop: equalTimes(999 * time.Microsecond), Start: equalTimes(time.Millisecond), Stopped: true, Resumed: true},
		{Way: BatchWay, Asked: 64, Queues: 64, Stop: equalTimes(time.Microsecond), Start: equalTimes(time.Microsecond), Skipped: "no effect\n| at all"},
		{Way: StockWay, Asked: 64, Queues: 64, Stop: equalTimes(2 * time.Millisecond), Start: equalTimes(3 * time.Millisecond), Stopped: true, Resumed: true},
	}}
	bench := &Result{Machine: m, Cases: []CaseResult{{Name: "micro-40ms", Phases: []Phase{
		{Name: native, Latency: equalTimes(80 * time.Millisecond)}, {Name: underGiveway, Latency: equalTimes(7 * time.Millisecond)},
	}}}}
	soak := &SoakResult{Machine: m, Rounds: 720, Length: time.Hour, Slots: &SlotsUse{Slots: 24, Mean: 0.75, Counted: true, Samples: 9}}
	for name, write := range map[string]func(*os.File) error{
		StopsFile: func(f *os.File) error { return stops.WriteJSON(f) },
		BenchFile: func(f *os.File) error { return bench.WriteJSON(f) },
		SoakFile:  func(f *os.File) error { return soak.WriteJSON(f) },
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			defer f.Close()
			err = write(f)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAMDTargets(t *testing.T) {
	var got strings.Builder
	met, err := WriteAMDTargets(&got, writeAMDResults(t, "AMD Instinct MI308X"))
	if err != nil || met {
		t.Errorf("got met %v, %v; want targets that are missed", met, err)
	}
	want := `AMD Instinct MI308X; gfx942; HIP 6.3; amdgpu of Linux 6.8; KFD 1.17, patched; Linux 6.8

| document's target | measured | met? |
| --- | --- | --- |
| batch unmap of 1 queue, P99 < 1.00ms / 500us / 300us | 200us (P50 200us, 1 hardware queues) | yes (best) |
| fast remap of 1 queue, P99 < 1.00ms / 500us / 300us | 400us (P50 400us) | yes (should) |
| batch unmap of 2 queues, P99 < 1.00ms / 500us / 300us | not measured: not among the numbers of queues | - |
| fast remap of 2 queues, P99 < 1.00ms / 500us / 300us | not measured: not among the numbers of queues | - |
| batch unmap of 10 queues, P99 < 1.00ms / 500us / 300us | 999us (P50 999us, 10 hardware queues) | yes (must) |
| fast remap of 10 queues, P99 < 1.00ms / 500us / 300us | 1.00ms (P50 1.00ms) | NO |
| batch unmap of 64 queues, P99 < 1.00ms / 500us / 300us | not measured: no effect; \| at all; stock suspend P99 2.00ms | - |
| fast remap of 64 queues, P99 < 1.00ms / 500us / 300us | not measured: no effect; \| at all; stock suspend P99 3.00ms | - |
| online request beside batch kernels of 40 ms, P99 < 15.0ms / 10.0ms / 5.00ms | 7.00ms (P50 7.00ms, native P99 80.0ms) | yes (should) |
| HQD slots in use > 80.0% | 75.0% (of 24, 9 samples) | NO |
| an hour without error: < 1 error | 0 errors (1h0m0s, 720 rounds) | yes |
`
	if got.String() != strings.Replace(want, "amdgpu of Linux 6.8", "amdgpu 6.10", 1) {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}

// TestAMDTargetsOfADouble checks that no figure of a double looks like that of a GPU.
func TestAMDTargetsOfADouble(t *testing.T) {
	var got strings.Builder
	if _, err := WriteAMDTargets(&got, writeAMDResults(t, "HIP double, not hardware")); err != nil {
		t.Fatal(err)
	}
	if text := got.String(); !strings.Contains(text, "**Double, not hardware") || strings.Contains(text, "yes") || strings.Contains(text, "NO |") {
		t.Errorf("got\n%s\nwant no verdict", text)
	}
	got.Reset()
	if _, err := WriteAMDTargets(&got, t.TempDir()); err != nil || strings.Count(got.String(), "not measured: no ") != 11 {
		t.Errorf("without files: got %v\n%s\nwant that nothing was measured", err, &got)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, SoakFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteAMDTargets(&got, dir); err == nil || !strings.Contains(err.Error(), SoakFile) {
		t.Errorf("a broken file: got error %v", err)
	}
}

func TestStopsPage(t *testing.T) {
	r := &StopsResult{Machine: Machine{GPU: "HIP double, not hardware"}, Rounds: 5, Driver: "KFD 1.17, stock", Rows: []StopsRow{
		{Way: "one by one", Asked: 10, Queues: 10, Stop: equalTimes(5 * time.Millisecond), Start: equalTimes(3 * time.Millisecond), Stopped: true, Resumed: true},
		{Way: "stock suspend", Asked: 10, Queues: 10, Stop: equalTimes(time.Millisecond), Start: equalTimes(2 * time.Millisecond), Stopped: true},
		{Way: BatchWay, Asked: 10, Skipped: "the driver is stock"},
	}}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"double, not hardware</span>", "not measured: the driver is stock", "THE CALLS HAVE NO EFFECT",
		"To stop and start 10 queues takes (P50): one by one 5.00ms and 3.00ms; stock suspend 1.00ms and 2.00ms.",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
}
