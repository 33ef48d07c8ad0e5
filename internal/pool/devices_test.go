package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestGPUSet checks that indices become UUIDs where the driver's order is known, so that a
// program outside the pool means the same GPU; that a set of GPUs is one pool, however it is
// written; and that the program keeps its order.
func TestGPUSet(t *testing.T) {
	describe := func(t *testing.T, models ...string) {
		was := gpusFolder
		gpusFolder = t.TempDir()
		t.Cleanup(func() { gpusFolder = was })
		for i, model := range models {
			dir := filepath.Join(gpusFolder, fmt.Sprintf("0000:%02x:00.0", i+1))
			text := fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 42\nGPU UUID: \t GPU-%c%d\n", model, 'a'+i, i)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
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
			describe(t, tt.models...)
			if got := gpuSet(tt.env); got != tt.set {
				t.Errorf("set: got %q, want %q", got, tt.set)
			}
			p := &Pool{Info: Info{Label: "a"}, dir: "/x"}
			if got, _ := lookup(p.clientEnv(Request{Env: tt.env}, nil), devicesEnv); got != tt.member {
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
