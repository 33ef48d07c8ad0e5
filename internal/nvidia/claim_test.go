package nvidia

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/internal/drivertest"
)

// TestClaim: one daemon has the control device until it closes the file or dies. A process of an
// ordinary user that locks the device does not keep root's daemon out.
func TestClaim(t *testing.T) {
	dir, err := os.MkdirTemp("", "claim") // other users may enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	control := filepath.Join(dir, "nvidiactl")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(control, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	first, err := claim(control)
	if err != nil || first == nil {
		t.Fatalf("got %v, %v; want the device", first, err)
	}
	if _, err := claim(control); !errors.Is(err, errClaimed) || !strings.Contains(err.Error(), fmt.Sprintf("process %d of user %d", os.Getpid(), os.Getuid())) {
		t.Errorf("a second time: got %v, want %v with this process", err, errClaimed)
	}
	_ = first.Close()

	if os.Getuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	for _, c := range []struct {
		uid  uint32
		want error
	}{{0, errClaimed}, {65534, nil}} {
		cmd := exec.Command("flock", control, "-c", "echo locked; read end")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
		child := drivertest.Start(t, cmd)
		if _, err := child.Out.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if f, err := claim(control); f != nil || !errors.Is(err, c.want) {
			t.Errorf("while user %d has the device: got %v, %v; want %v", c.uid, f, err, c.want)
		}
		child.KillWithChildren()
		drivertest.Eventually(t, "the device is free when its holder was killed", func() bool {
			f, err := claim(control)
			_ = f.Close()
			return f != nil && err == nil
		})
	}
}
