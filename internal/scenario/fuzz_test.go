package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
)

// FuzzParse checks that no file makes the reader panic, that every error has the
// file's name, and that the simulator can run every file that the reader accepts.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../../scenarios/*.yaml")
	for _, path := range append(files, "testdata/everything.yaml") {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	data, err := os.ReadFile("testdata/mistakes.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range strings.Split(string(data), "\n=== ")[1:] {
		_, body, _ := strings.Cut(text, "\n")
		file, _, _ := strings.Cut(body, ">>>\n")
		f.Add([]byte(file))
	}
	f.Add([]byte("a: &a [*a, *a]\nb: &b {c: *b}\nname: *a\nclients: *b\ndevices: *a\n"))
	f.Add([]byte("{name: !!binary aGk=, ? [x] : 1, &k *k : 2}"))
	giveway, err := policy.Choose("giveway", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("x.yaml", data, traces)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "x.yaml") && !strings.Contains(err.Error(), "mistakes") {
				t.Errorf("got an error without the file: %v", err)
			}
			return
		}
		if len(s.Config.Clients) > maxClients || len(s.Config.Devices) > maxDevices {
			t.Fatalf("got %d clients and %d devices, more than allowed", len(s.Config.Clients), len(s.Config.Devices))
		}
		cfg := s.Config
		flight := 0
		for i := range cfg.Clients {
			flight += max(cfg.Clients[i].Arrival.Depth, 1) * kernelsOf(&cfg.Clients[i])
		}
		if len(cfg.Clients) > 20 || flight > 2000 {
			return // it would take too long
		}
		cfg.Warmup, cfg.Length, cfg.Drain = 0, time.Millisecond, 0
		sim.New(cfg).Run()
		cfg.Policy = giveway
		sim.New(cfg).Run()
	})
}
