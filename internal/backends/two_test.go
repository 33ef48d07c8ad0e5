package backends

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

// TestTwoDaemonsOnNVIDIA starts two daemons with sockets of their own. Only the first controls the
// GPUs, also for 'giveway restore --all'; the second does when the first has ended. At the end every
// group is as it was found.
func TestTwoDaemonsOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	online, batch := m.Start(t).PID, m.Start(t).PID
	var daemons [2]*drivertest.Child
	var clients [2]*client.Client
	for i := range daemons {
		dir, err := os.MkdirTemp("", "giveway") // a socket's path must be short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		socket := filepath.Join(dir, "s")
		daemons[i] = drivertest.Start(t, drivertest.Self("BACKENDS_TEST=serve", "BACKENDS_TEST_CONTROL="+m.Path, "BACKENDS_TEST_SOCKET="+socket))
		clients[i] = client.New(socket)
		drivertest.Eventually(t, "the daemon answers", func() bool { _, err := clients[i].Status(t.Context()); return err == nil })
		if i == 0 {
			drivertest.Eventually(t, "the first daemon has changed the slices", func() bool {
				for pid, attrs := range map[int]string{online: "class=online", batch: "class=batch"} {
					if _, err := clients[i].Change(t.Context(), pid, api.Change{Values: attr.Must(attrs)}); err != nil {
						return false
					}
				}
				return groupOf(t, rm, m.Path, online) != asFound && groupOf(t, rm, m.Path, batch) != asFound
			})
		}
	}
	processes := func(i int) int {
		all, err := clients[i].Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	says := func(text string) (said bool) {
		st, err := clients[1].Status(t.Context())
		for _, c := range st.Checks {
			said = said || !c.OK && strings.Contains(c.Detail, text)
		}
		return said && err == nil
	}
	drivertest.Eventually(t, "the second daemon says why it controls nothing", func() bool { return says("another daemon controls the NVIDIA GPUs: process ") })
	if n, m := processes(0), processes(1); n != 2 || m != 0 {
		t.Errorf("the daemons control %d and %d processes, want 2 and none", n, m)
	}
	if r, err := onDouble(m.Path).RestoreAll(t.Context()); err == nil || groupOf(t, rm, m.Path, online) == asFound {
		t.Errorf("restore --all beside a daemon: got %+v, %v; want an error and nothing changed", r, err)
	}
	for i, d := range daemons {
		_ = syscall.Kill(d.PID, syscall.SIGTERM)
		if err := d.Exit(); err != nil {
			t.Error(err)
		}
		for _, pid := range []int{online, batch} {
			if got := groupOf(t, rm, m.Path, pid); got != asFound {
				t.Errorf("daemon %d has ended: got %+v, want %+v", i, got, asFound)
			}
		}
		if i == 0 {
			drivertest.Eventually(t, "the second daemon controls the processes", func() bool { return processes(1) == 2 && !says("another daemon") })
		}
	}
}
