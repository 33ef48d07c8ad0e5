package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockedProc is a procfs with processes 1 to n whose command lines cannot be read until unlock
// is called. A named pipe stands for the kernel, which waits for the memory of the process.
func lockedProc(t *testing.T, n int, cgroup string) (fs FS, unlock func(pid int)) {
	t.Helper()
	root := t.TempDir()
	for pid := 1; pid <= n; pid++ {
		dir := filepath.Join(root, fmt.Sprint(pid))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"stat": fmt.Sprintf("%d (a)", pid) + statRest, "status": "Uid:\t7 7 7 7\nGid:\t7 7 7 7\n", "comm": "locked\n", "cgroup": "0::" + cgroup + "\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(dir, "cmdline"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs = FS(root)
	return fs, func(pid int) {
		t.Helper()
		if err := os.WriteFile(fs.Path(pid, "cmdline"), []byte("unlocked"), 0); err != nil {
			t.Error(err)
		}
	}
}

func hanging() int {
	memoryReads.mu.Lock()
	defer memoryReads.mu.Unlock()
	return memoryReads.all
}

// TestLockedMemory checks that a process that keeps its memory locked is described all the same,
// is waited for once, and delays neither its owner's other processes for long nor other owners.
func TestLockedMemory(t *testing.T) {
	clear(memoryReads.of) // what an earlier run of this test left
	fs, unlock := lockedProc(t, maxHangingOfOwner+1, "/docker/"+id)
	look := func(pid int) (took time.Duration) {
		t.Helper()
		begun := time.Now()
		if p, err := fs.Process(pid); err != nil || p.Command != "[locked]" || p.Container != id {
			t.Errorf("process %d: got %+v, %v", pid, p, err)
		}
		return time.Since(begun)
	}
	if took := look(1); took < memoryTimeout {
		t.Errorf("gave up after %v, want %v", took, memoryTimeout)
	}
	for range 1000 { // at once: each of them would take slowMemoryTimeout
		look(1)
	}
	if n := hanging(); n != 1 {
		t.Errorf("reads that hang: got %d, want 1", n)
	}
	for pid := 2; pid <= maxHangingOfOwner+1; pid++ {
		look(pid)
	}
	if n := hanging(); n != maxHangingOfOwner {
		t.Errorf("reads that hang: got %d, want %d", n, maxHangingOfOwner)
	}
	other := fakeProc(t, map[string]string{"stat": "42 (a)" + statRest, "status": "Uid:\t7 7 7 7\nGid:\t7 7 7 7\n", "cmdline": "python3", "cgroup": "0::/docker/" + id2 + "\n"})
	if p, err := other.Process(42); err != nil || p.Command != "python3" {
		t.Errorf("the same user in another container: got %+v, %v", p, err)
	}
	for pid := 1; pid <= maxHangingOfOwner; pid++ {
		unlock(pid)
	}
	for end := time.Now().Add(10 * time.Second); hanging() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("reads that hang after the memory was unlocked: got %d, want 0", hanging())
		}
	}
	p, _ := other.Process(42)
	owner := memoryOwner{p.UID, id}
	if wait := memoryReads.timeout(owner, 1, time.Now()); wait != slowMemoryTimeout {
		t.Errorf("timeout after a hang: got %v, want %v", wait, slowMemoryTimeout)
	}
	if wait := memoryReads.timeout(owner, 1, time.Now().Add(2*slowMemoryTime)); wait != memoryTimeout {
		t.Errorf("timeout long after a hang: got %v, want %v", wait, memoryTimeout)
	}
}
