package pool

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestControlPIDOfWhateverIsThere checks that what another user may put in the place of the
// control daemon's file neither delays a program nor takes its memory.
func TestControlPIDOfWhateverIsThere(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := put(filepath.Join(dir, controlProgram+".pid")); err != nil {
				t.Fatal(err)
			}
			if pid := controlPID(dir); pid != 0 {
				t.Errorf("got process %d, want none", pid)
			}
		})
	}
}

// TestStartSaysWhy checks that the error of a control daemon that does not start has the
// reason, what it printed and how its log ends, and that a daemon which may run unseen is told
// to quit.
func TestStartSaysWhy(t *testing.T) {
	was := startTime
	startTime = 50 * time.Millisecond
	defer func() { startTime = was }()
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"no file", "", []string{"no such file", "it printed \"hello\""}},
		{"no pid", "echo x >$file", []string{`has "x\n", which is no pid`}},
		{"no process", "echo 999999999 >$file", []string{"process 999999999", "no such file"}},
		{"another program", "echo $PPID >$file", []string{"which is not a living nvidia-cuda-mps", "(pool.test)"}},
		{"its log", "echo a b >$CUDA_MPS_LOG_DIRECTORY/control.log; echo no GPU >>$CUDA_MPS_LOG_DIRECTORY/control.log", []string{`control.log ends with ["a b" "no GPU"]`}},
		{"fails", "exit 3", []string{"exit status 3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestbed(t)
			b.wrapControl("file=$CUDA_MPS_PIPE_DIRECTORY/" + controlProgram + ".pid\nif [ \"$1\" != -d ]; then cat >$dir/asked; exit; fi\necho hello\n" + c.script)
			_, err := Join(Request{Keeper: keeperCommand()})
			for _, want := range append(c.want, filepath.Join(b.folder(), "log")) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			asked, _ := os.ReadFile(filepath.Join(b.dir, "asked"))
			if quit := c.name != "fails"; quit != (string(asked) == "quit\n") {
				t.Errorf("the daemon was told %q", asked)
			}
		})
	}
}
