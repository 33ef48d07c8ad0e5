package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOwner: a process belongs to its user only if all its ids are that user's and it is
// dumpable, as for ptrace.
func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files of other users")
	}
	const alice, video, root = 1000, 44, 0
	for _, c := range []struct {
		name       string
		uids, gids string
		files      int // the owner of the files below /proc/PID
		want       owner
	}{
		{"ordinary", "1000 1000 1000 1000", "44 44 44 44", alice, owner{alice, video, alice, "44 100 2000"}},
		{"setuid root", "1000 0 0 0", "44 44 44 44", root, owner{starter: alice, groups: "44 100 2000"}},
		{"setuid of another user", "1000 1001 1001 1001", "44 44 44 44", 1001, owner{starter: alice, groups: "44 100 2000"}},
		{"setuid, rights dropped for now", "1000 1000 0 1000", "44 44 44 44", alice, owner{starter: alice, groups: "44 100 2000"}},
		{"setgid", "1000 1000 1000 1000", "44 5 5 5", alice, owner{starter: alice, groups: "44 100 2000"}},
		{"setgid, rights dropped for now", "1000 1000 1000 1000", "44 44 5 44", alice, owner{starter: alice, groups: "44 100 2000"}},
		{"not dumpable", "1000 1000 1000 1000", "44 44 44 44", root, owner{starter: alice, groups: "44 100 2000"}},
		{"root's", "0 0 0 0", "0 0 0 0", root, owner{groups: "0 100 44 2000"}},
	} {
		p := fakeProc(t, map[string]string{"stat": "42 (a)" + statRest, "status": fmt.Sprintf("Uid:\t%s\nGid:\t%s\nGroups:\t100 44 2000 \n", c.uids, c.gids)})
		if err := os.Chown(filepath.Join(string(p), "42", "status"), c.files, 0); err != nil {
			t.Fatal(err)
		}
		if got, err := p.owner(42); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

// TestOwnerOfASetuidProgram: while a setuid program runs it belongs to root, not to the
// user who started it.
func TestOwnerOfASetuidProgram(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a setuid program")
	}
	const nobody = 65534
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		mode os.FileMode
		want uint32
	}{{"plain", 0o755, nobody}, {"setuid", 0o755 | os.ModeSetuid, 0}} {
		program := filepath.Join(dir, c.name)
		if err := os.WriteFile(program, text, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(program, c.mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		got, err := Look(cmd.Process.Pid) // Start has waited for exec
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil || got.UID != c.want {
			t.Errorf("%s: got user %d, %v; want %d", c.name, got.UID, err, c.want)
		}
	}
}
