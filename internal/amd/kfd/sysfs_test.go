package kfd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
)

// writeFiles writes files below the KFD directory of a sysfs.
func writeFiles(t *testing.T, sys string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(sys, "class/kfd/kfd", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopology(t *testing.T) {
	sys := t.TempDir()
	second := kfdtest.MI300X
	second.Index, second.GPU, second.Slots = 2, 99, 8
	kfdtest.New(kfdtest.Config{Sys: sys, GPUs: []kfd.Node{kfdtest.MI300X, second}})
	nodes, err := kfd.Sysfs(sys).Nodes()
	if err != nil || len(nodes) != 2 || nodes[0] != kfdtest.MI300X || nodes[1] != second {
		t.Errorf("got %+v, %v; want two GPUs", nodes, err)
	}
	for gfx, want := range map[kfd.GFX]string{90402: "gfx942", 90010: "gfx90a", 110000: "gfx1100", 120001: "gfx1201", 90008: "gfx908"} {
		if gfx.String() != want {
			t.Errorf("%d: got %s, want %s", gfx, gfx, want)
		}
	}
	if _, err := kfd.Sysfs(t.TempDir()).Nodes(); err == nil {
		t.Error("a machine without KFD: got no error")
	}
}

// TestMalformedTopology checks that a malformed node is reported and that the others are
// still listed.
func TestMalformedTopology(t *testing.T) {
	good := map[string]string{
		"topology/nodes/1/gpu_id": "51545\n", "topology/nodes/1/name": "ok\n",
		"topology/nodes/1/properties": "gfx_target_version 90402\nnum_cp_queues 24\n",
		"topology/nodes/x/gpu_id":     "7", "topology/nodes/-1/gpu_id": "7", "topology/nodes/99999999999/gpu_id": "7",
	}
	for name, bad := range map[string]map[string]string{
		"negative gpu_id":      {"gpu_id": "-1", "name": "", "properties": ""},
		"gpu_id of 2^64":       {"gpu_id": "18446744073709551616", "name": "", "properties": ""},
		"not a number":         {"gpu_id": "\x00\xff\x1b[2J", "name": "", "properties": ""},
		"huge file":            {"gpu_id": strings.Repeat("1", 1<<17), "name": "", "properties": ""},
		"negative slots":       {"gpu_id": "5", "name": "n", "properties": "num_cp_queues -24\n"},
		"a million slots":      {"gpu_id": "5", "name": "n", "properties": "num_cp_queues 1000000\n"},
		"slots beyond 64 bits": {"gpu_id": "5", "name": "n", "properties": "num_cp_queues 99999999999999999999\n"},
		"huge properties":      {"gpu_id": "5", "name": "n", "properties": strings.Repeat("a 1\n", 1<<16)},
		"key without a value":  {"gpu_id": "5", "name": "n", "properties": "num_cp_queues\n"},
	} {
		sys := t.TempDir()
		writeFiles(t, sys, good)
		for file, text := range bad {
			writeFiles(t, sys, map[string]string{"topology/nodes/2/" + file: text})
		}
		nodes, err := kfd.Sysfs(sys).Nodes()
		if len(nodes) != 1 || nodes[0].GPU != 51545 || nodes[0].Slots != 24 {
			t.Errorf("%s: got %+v, want the other GPU", name, nodes)
		}
		if err == nil || !strings.Contains(err.Error(), "node 2") || len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\x00\x1b") {
			t.Errorf("%s: got %q, want a short printable error that names node 2", name, err)
		}
	}
	sys := t.TempDir()
	writeFiles(t, sys, map[string]string{
		"topology/nodes/1/gpu_id": "5", "topology/nodes/1/properties": "nonsense\n\n \x00 \nnum_cp_queues 8\n",
		"topology/nodes/1/name": "\x1b]0;evil\a" + strings.Repeat("x", 1000),
	})
	nodes, err := kfd.Sysfs(sys).Nodes()
	if err != nil || len(nodes) != 1 || nodes[0].Slots != 8 || len(nodes[0].Name) > 64 || strings.ContainsAny(nodes[0].Name, "\x1b\a") {
		t.Errorf("odd lines: got %+v, %v; want one GPU with a printable name", nodes, err)
	}
}

func TestMemory(t *testing.T) {
	sys := t.TempDir()
	writeFiles(t, sys, map[string]string{"proc/41/vram_51545": "206158430208\n", "proc/41/vram_7": "-1\n"})
	s := kfd.Sysfs(sys)
	for _, c := range []struct {
		pid  int
		gpu  uint32
		want uint64
		ok   bool
	}{{41, 51545, 192 << 30, true}, {41, 7, 0, false}, {41, 8, 0, true}, {42, 51545, 0, true}} {
		if got, err := s.Memory(c.pid, c.gpu); got != c.want || (err == nil) != c.ok {
			t.Errorf("process %d, GPU %d: got %d, %v; want %d, no error: %v", c.pid, c.gpu, got, err, c.want, c.ok)
		}
	}
}

func TestQueues(t *testing.T) {
	sys := t.TempDir()
	writeFiles(t, sys, map[string]string{
		"proc/41/pasid":          "32769\n",
		"proc/41/queues/0/gpuid": "51545", "proc/41/queues/0/type": "0",
		"proc/41/queues/10/gpuid": "51545", "proc/41/queues/10/type": "1",
		"proc/41/queues/2/gpuid": "-3", "proc/41/queues/2/type": "0",
		"proc/41/queues/3/gpuid": "1", // its type file has vanished
		"proc/0/pasid":           "1", "proc/4194305/pasid": "1", "proc/abc/pasid": "1", "proc/-7/pasid": "1",
	})
	s := kfd.Sysfs(sys)
	pids, err := s.Processes()
	if err != nil || len(pids) != 1 || pids[0] != 41 {
		t.Errorf("got processes %v, %v; want 41", pids, err)
	}
	queues, err := s.Queues(41)
	want := []kfd.Queue{{PID: 41, ID: 0, GPU: 51545}, {PID: 41, ID: 10, GPU: 51545, Type: 1}}
	if len(queues) != 2 || queues[0] != want[0] || queues[1] != want[1] || !queues[0].IsCompute() || queues[1].IsCompute() {
		t.Errorf("got queues %+v, want %+v", queues, want)
	}
	if err == nil || !strings.Contains(err.Error(), "queue 2 of process 41") || strings.Contains(err.Error(), "queue 3") {
		t.Errorf("got %v, want an error that names queue 2 only", err)
	}
	if _, err := s.Queues(42); err == nil {
		t.Error("unknown process: got no error")
	}
}
