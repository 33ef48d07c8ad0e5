package kfdtest_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
)

// realEnv names the device of a real driver, for a test binary that runs where
// there is one:
//
//	CGO_ENABLED=0 go test -c -o kfdtest.test ./internal/amd/kfd/kfdtest
//	KFDTEST_DEV=/dev/kfd KFDTEST_OUT=seen.txt ./kfdtest.test -test.run Conformance -test.v
//
// As root, with the device open to all. What is seen is written to KFDTEST_OUT.
const (
	realEnv = "KFDTEST_DEV"
	outEnv  = "KFDTEST_OUT"
)

// eventually wants a complaint to become none.
func eventually(t *testing.T, complaint func() string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); complaint() != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(complaint())
		}
	}
}

// compare holds what was seen against what the real driver without a GPU showed, which
// `make kernel-test` compares with the same files.
func compare(t *testing.T, patched bool, seen []string) {
	t.Helper()
	file := "../../../../kernel/amdkfd/testdata/stock.txt"
	if patched {
		file = "../../../../kernel/amdkfd/testdata/patched.txt"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, "\n") + "\n"; got != string(text) {
		t.Errorf("the double shows\n%sand the real driver, in %s,\n%s", got, file, text)
	}
}

func TestConformance(t *testing.T) {
	none := []kfd.Node{}
	for _, tt := range []struct {
		name    string
		cfg     kfdtest.Config
		gpu     uint32
		atLeast int // rows
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
			if seen := kfdtest.ConformInMemory(t, k, w, tt.gpu); len(seen) < tt.atLeast {
				t.Errorf("%d rows were run", len(seen))
			}
			eventually(t, k.Left)
		})
		t.Run(tt.name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("programs of another user are needed, and only root makes them")
			}
			k := kfdtest.New(tt.cfg)
			m := kfdtest.Mounted(t, k)
			seen := kfdtest.Conform(t, m.Path, tt.gpu)
			if len(seen) < tt.atLeast {
				t.Errorf("%d rows were run", len(seen))
			}
			if tt.gpu == 0 {
				compare(t, tt.cfg.Patched, seen)
			}
			eventually(t, func() string { return k.Left() }) // the kernel tells of closed files in its own time
		})
	}
	t.Run("Real", func(t *testing.T) {
		path := os.Getenv(realEnv)
		if path == "" {
			t.Skip(realEnv + " is not set: it names the device of a real driver")
		}
		seen := kfdtest.Conform(t, path, 0)
		if out := os.Getenv(outEnv); out != "" {
			if err := os.WriteFile(out, []byte(strings.Join(seen, "\n")+"\n"), 0o644); err != nil {
				t.Error(err)
			}
		}
		for _, line := range seen {
			t.Log(line)
		}
	})
}
