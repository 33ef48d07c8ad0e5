package pool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// describeGPUs makes the driver describe GPUs, with UUIDs GPU-a0, GPU-b1 and so on, and makes
// their device files. Their minor numbers are in the reverse order.
func describeGPUs(t *testing.T, models ...string) {
	t.Helper()
	was, wasFiles := gpusFolder, deviceFiles
	gpusFolder, deviceFiles = t.TempDir(), t.TempDir()
	t.Cleanup(func() { gpusFolder, deviceFiles = was, wasFiles })
	for i, model := range models {
		dir, minor := filepath.Join(gpusFolder, fmt.Sprintf("0000:%02x:00.0", i+1)), len(models)-1-i
		text := fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 42\nGPU UUID: \t GPU-%c%d\nDevice Minor: \t %d\n", model, 'a'+i, i, minor)
		err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644),
			os.WriteFile(filepath.Join(deviceFiles, fmt.Sprintf("nvidia%d", minor)), nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestGPUSet checks that indices become UUIDs where the driver's order is known, so that a
// program outside the pool means the same GPU; that a set of GPUs is one pool, however it is
// written; and that the program keeps its order.
func TestGPUSet(t *testing.T) {
	equal, mixed := []string{"H200", "H200", "H200"}, []string{"L4", "H200"}
	for _, tt := range []struct {
		name   string
		models []string
		env    []string
		set    string // of the pool
		member string // CUDA_VISIBLE_DEVICES of the program
	}{
		{"not given", equal, nil, "", ""},
		{"indices", equal, []string{"CUDA_VISIBLE_DEVICES=2,0"}, "GPU-a0,GPU-c2", "GPU-c2,GPU-a0"},
		{"another order", equal, []string{"CUDA_VISIBLE_DEVICES=0,2"}, "GPU-a0,GPU-c2", "GPU-a0,GPU-c2"},
		{"UUIDs", equal, []string{"CUDA_VISIBLE_DEVICES=GPU-c2,GPU-b1"}, "GPU-b1,GPU-c2", "GPU-c2,GPU-b1"},
		{"beginnings of UUIDs", equal, []string{"CUDA_VISIBLE_DEVICES=GPU-c,GPU-b"}, "GPU-b1,GPU-c2", "GPU-c2,GPU-b1"},
		{"beginning of several", equal, []string{"CUDA_VISIBLE_DEVICES=GPU-"}, "GPU-", "GPU-"},
		{"all", equal, []string{"CUDA_VISIBLE_DEVICES=2,1,0"}, "", "GPU-c2,GPU-b1,GPU-a0"},
		{"no such index", equal, []string{"CUDA_VISIBLE_DEVICES=3"}, "3", "3"},
		{"unknown order", mixed, []string{"CUDA_VISIBLE_DEVICES=1"}, "1", "1"},
		{"order of the bus", mixed, []string{"CUDA_VISIBLE_DEVICES=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}, "GPU-b1", "GPU-b1"},
		{"nothing known", nil, []string{"CUDA_VISIBLE_DEVICES=0"}, "0", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			describeGPUs(t, tt.models...)
			if got, err := gpuSet(tt.env); got != tt.set || err != nil {
				t.Errorf("set: got %q, %v; want %q", got, err, tt.set)
			}
			p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
			if got, _ := lookup(p.clientEnv(Request{Env: tt.env}, nil), devicesEnv); got != tt.member {
				t.Errorf("member: got %q, want %q", got, tt.member)
			}
		})
	}
}

// TestHiddenGPUs checks that GPUs which the program cannot open do not count, as in CUDA: in the
// job of a batch system index 0 is the first GPU of the job. Jobs with different GPUs are not in
// one pool, whose server would be on the GPU of one job.
func TestHiddenGPUs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		hide    string // minor numbers, which are 2, 1, 0 for a, b, c
		unknown bool   // the UUID of b is not known yet
		models  []string
		visible string
		set     string // of the pool; "?": an error
		member  string // CUDA_VISIBLE_DEVICES of the program
	}{
		{name: "index in a job", hide: "02", visible: "0", set: "GPU-b1", member: "GPU-b1"},
		{name: "another job", hide: "12", visible: "0", set: "GPU-c2", member: "GPU-c2"},
		{name: "two GPUs", hide: "2", visible: "1,0", set: "GPU-b1,GPU-c2", member: "GPU-c2,GPU-b1"},
		{name: "not given", hide: "02", set: "GPU-b1"},
		{name: "no such index", hide: "02", visible: "1", set: "?"},
		{name: "order not known", hide: "0", models: []string{"L4", "H200", "H200"}, visible: "0", set: "?"},
		{name: "order known in the job", hide: "2", models: []string{"L4", "H200", "H200"}, visible: "0", set: "GPU-b1", member: "GPU-b1"},
		{name: "UUID not known", hide: "02", unknown: true, visible: "0", set: "?"},
		{name: "UUID not known, not given", hide: "02", unknown: true, set: "?"},
		{name: "UUID given", hide: "02", unknown: true, visible: "GPU-b1", set: "GPU-b1", member: "GPU-b1"},
		{name: "UUID of a hidden one not known", hide: "12", unknown: true, visible: "0", set: "GPU-c2", member: "GPU-c2"},
		{name: "no device files yet", hide: "012", visible: "2,1,0", set: "", member: "GPU-c2,GPU-b1,GPU-a0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.models == nil {
				tt.models = []string{"H200", "H200", "H200"}
			}
			describeGPUs(t, tt.models...)
			for _, minor := range tt.hide {
				if err := os.Remove(filepath.Join(deviceFiles, fmt.Sprintf("nvidia%c", minor))); err != nil {
					t.Fatal(err)
				}
			}
			if tt.unknown {
				path := filepath.Join(gpusFolder, "0000:02:00.0", "information")
				text, _ := os.ReadFile(path)
				if err := os.WriteFile(path, []byte(strings.Replace(string(text), "GPU-b1", "GPU-??", 1)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var env []string
			if tt.visible != "" {
				env = []string{devicesEnv + "=" + tt.visible}
			}
			set, err := gpuSet(env)
			if tt.set == "?" {
				if !errors.Is(err, errUnknownGPUs) {
					t.Errorf("set: got %q, %v; want an error", set, err)
				}
				return
			}
			if set != tt.set || err != nil {
				t.Errorf("set: got %q, %v; want %q", set, err, tt.set)
			}
			p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
			if got, _ := lookup(p.clientEnv(Request{Env: env}, nil), devicesEnv); got != tt.member {
				t.Errorf("member: got %q, want %q", got, tt.member)
			}
		})
	}
}

// TestEnvironment checks what the control daemon gets of the program's environment: a
// server that sees all GPUs if the program names some by index.
func TestEnvironment(t *testing.T) {
	p := &Pool{Info: Info{Label: "a", Devices: "GPU-1"}, dir: "/x"}
	got := p.environment([]string{"HOME=/root", "LD_PRELOAD=/lib.so", "CUDA_MPS_CLIENT_PRIORITY=1", "CUDA_VISIBLE_DEVICES=1"})
	want := []string{"GIVEWAY_POOL=a:/x/pipe", "CUDA_MPS_PIPE_DIRECTORY=/x/pipe", "CUDA_MPS_LOG_DIRECTORY=/x/log", "CUDA_MPS_PROTOCOL_VERSION=2", "HOME=/root", "CUDA_VISIBLE_DEVICES=GPU-1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	p.Devices = "1"
	if got := p.environment(nil); slices.Contains(got, "CUDA_VISIBLE_DEVICES=1") {
		t.Errorf("got %q", got)
	}
}
