package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// poolState returns all that tells why a pool does not do what it should: the files in the
// folder of pools, the ends of its logs, the processes of MPS with their environments, and
// what giveway says.
func (b *testbed) poolState() string {
	var s strings.Builder
	s.WriteString("state of the pool:\n")
	describeFolder(&s, filepath.Join(filepath.Dir(b.socket), "pools"))
	describeFolder(&s, "/tmp/nvidia-mps")
	describeMPS(&s, "/proc")
	for _, args := range [][]string{{"pool", "--json"}, {"ps", "--json"}} {
		out, err := b.giveway(args...)
		fmt.Fprintf(&s, "giveway %s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return s.String()
}

// describeFolder writes mode, owner and size of everything in a folder, and the ends of what
// looks like text.
func describeFolder(s *strings.Builder, folder string) {
	_ = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(path, &st)
		}
		if err != nil {
			fmt.Fprintf(s, "%s: %v\n", path, err)
			return nil
		}
		fmt.Fprintf(s, "%s: mode %o, owner %d:%d, %d bytes\n", path, st.Mode, st.Uid, st.Gid, st.Size)
		name := filepath.Base(path)
		if st.Mode&syscall.S_IFMT == syscall.S_IFREG && (strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".pid") || strings.HasSuffix(name, ".json")) {
			text, err := os.ReadFile(path)
			lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
			for _, line := range lines[max(0, len(lines)-30):] {
				fmt.Fprintf(s, "    %s\n", line)
			}
			if err != nil {
				fmt.Fprintf(s, "    %v\n", err)
			}
		}
		return nil
	})
}

// describeMPS writes the processes of MPS: their pid, user, state, folders and variables.
func describeMPS(s *strings.Builder, proc string) {
	all, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	for _, path := range all {
		dir := filepath.Dir(path)
		comm, _ := os.ReadFile(path)
		if !strings.HasPrefix(string(comm), "nvidia-cuda-mps") {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		fmt.Fprintf(s, "process %s: %s\n", filepath.Base(dir), strings.ReplaceAll(string(command), "\x00", " "))
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "State:") || strings.HasPrefix(line, "PPid:") || strings.HasPrefix(line, "Uid:") || strings.HasPrefix(line, "NSpid:") {
				fmt.Fprintf(s, "    %s", line)
			}
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			fmt.Fprintf(s, "    environment: %v\n", err)
		}
		for e := range strings.SplitSeq(string(env), "\x00") {
			if strings.HasPrefix(e, "CUDA") || strings.HasPrefix(e, "GIVEWAY") || strings.HasPrefix(e, "NVIDIA") || strings.HasPrefix(e, "LD_") {
				fmt.Fprintf(s, "    %s\n", e)
			}
		}
	}
}

// TestPoolStateIsComplete needs no GPU: a failure on one is worth nothing if it does not say
// what was there.
func TestPoolStateIsComplete(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"pools/default-1/pipe/nvidia-cuda-mps-control.pid": "77\n",
		"pools/default-1/log/control.log":                  strings.Repeat("old\n", 50) + "Starting new server 78\n",
		"proc/78/comm":                                     "nvidia-cuda-mps\n",
		"proc/78/cmdline":                                  "nvidia-cuda-mps-server\x00-force\x00",
		"proc/78/status":                                   "Name:\tx\nState:\tZ (zombie)\nUid:\t1000\n",
		"proc/78/environ":                                  "HOME=/secret\x00GIVEWAY_POOL=default:/x/pipe\x00",
		"proc/79/comm":                                     "bash\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var s strings.Builder
	describeFolder(&s, filepath.Join(dir, "pools"))
	describeMPS(&s, filepath.Join(dir, "proc"))
	got := s.String()
	for _, want := range []string{
		"control.pid: mode 100600, owner ", "    77\n", "    Starting new server 78\n",
		"process 78: nvidia-cuda-mps-server -force", "State:\tZ", "GIVEWAY_POOL=default:/x/pipe\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
	for _, not := range []string{"secret", "bash"} {
		if strings.Contains(got, not) {
			t.Errorf("got\n%s\nwithout %q", got, not)
		}
	}
	if n := strings.Count(got, "old\n"); n >= 30 {
		t.Errorf("%d old lines, want only the end of a log", n)
	}
}
