package kfdtest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
)

// realEnv names the device of a real driver, for a test binary that runs on a machine with
// one:
//
//	CGO_ENABLED=0 go test -c -o kfdtest.test ./internal/amd/kfd/kfdtest
//	KFDTEST_DEV=/dev/kfd KFDTEST_OUT=seen.txt ./kfdtest.test -test.run Conformance -test.v
//
// It needs root, and a device that all users may open. The results are written to
// KFDTEST_OUT.
const (
	realEnv = "KFDTEST_DEV"
	outEnv  = "KFDTEST_OUT"
)

// compare compares the results of the double with those of the real driver without a GPU.
// `make kernel-test` compares the real driver with the same files.
func compare(t *testing.T, patched bool, lines []string) {
	t.Helper()
	file := "../../../../kernel/amdkfd/testdata/stock.txt"
	if patched {
		file = "../../../../kernel/amdkfd/testdata/patched.txt"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(lines, "\n") + "\n"; got != string(text) {
		t.Errorf("got from the double:\n%swant as from the real driver, in %s:\n%s", got, file, text)
	}
}

func TestConformance(t *testing.T) {
	none := []kfd.Node{}
	for _, tt := range []struct {
		name    string
		cfg     kfdtest.Config
		gpu     uint32
		minRows int
	}{
		{"Stock", kfdtest.Config{}, kfdtest.MI300X.GPU, 60},
		{"Patched", kfdtest.Config{Patched: true}, kfdtest.MI300X.GPU, 90},
		{"StockWithoutGPU", kfdtest.Config{GPUs: none}, 0, 50},
		{"PatchedWithoutGPU", kfdtest.Config{GPUs: none, Patched: true}, 0, 70},
	} {
		t.Run("InMemory"+tt.name, func(t *testing.T) {
			w := kfdtest.NewWorld()
			cfg := tt.cfg
			cfg.Host = w
			k := kfdtest.New(cfg)
			if lines := kfdtest.ConformInMemory(t, k, w, tt.gpu); len(lines) < tt.minRows {
				t.Errorf("got %d rows, want at least %d", len(lines), tt.minRows)
			}
			drivertest.Eventually(t, "all undone", func() bool { return k.Left() == "" })
		})
		t.Run(tt.name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("only root can start programs of another user")
			}
			k := kfdtest.New(tt.cfg)
			m := kfdtest.Mounted(t, k)
			lines := kfdtest.Conform(t, m.Path, tt.gpu)
			if len(lines) < tt.minRows {
				t.Errorf("got %d rows, want at least %d", len(lines), tt.minRows)
			}
			if tt.gpu == 0 {
				compare(t, tt.cfg.Patched, lines)
			}
			drivertest.Eventually(t, "all undone", func() bool { return k.Left() == "" }) // FUSE reports closed files later
		})
	}
	t.Run("Real", func(t *testing.T) {
		path := os.Getenv(realEnv)
		if path == "" {
			t.Skip(realEnv + ", the device of a real driver, is not set")
		}
		lines := kfdtest.Conform(t, path, 0)
		if out := os.Getenv(outEnv); out != "" {
			if err := os.WriteFile(out, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
				t.Error(err)
			}
		}
		for _, line := range lines {
			t.Log(line)
		}
	})
}
