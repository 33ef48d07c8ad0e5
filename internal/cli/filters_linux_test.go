package cli

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// filterEnv is the number of a system call. A test process with it installs a filter that
// kills for that call, and then runs the command line.
const filterEnv = "GIVEWAY_TEST_FILTER"

// execFiltered installs the filter and calls exec.
func execFiltered(number string) error {
	os.Unsetenv(filterEnv)
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return err
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(n), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	runtime.LockOSThread() // exec keeps the filters of the thread that calls it
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, reflect.ValueOf(program).Pointer())
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// TestFiltersOf: filters are seen also where the kernel does not show their number.
func TestFiltersOf(t *testing.T) {
	for status, want := range map[string]filters{
		"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n": {},
		"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n": {any: true, count: 3},
		"Name:\tx\nSeccomp:\t2\n":                      {any: true}, // before Linux 5.9
		"Name:\tx\n":                                   {},          // a kernel without seccomp
	} {
		if got := filtersOf(status); got != want {
			t.Errorf("%q: got %+v, want %+v", status, got, want)
		}
	}
}

// TestFiltersVariable: a run inside a run replaces the number of the outer one. A C program
// reads the first of two variables of one name.
func TestFiltersVariable(t *testing.T) {
	env := []string{"A=1", "GIVEWAY_FILTERS=1", "B=2"}
	for count, want := range map[int][]string{0: {"A=1", "B=2"}, 2: {"A=1", "B=2", "GIVEWAY_FILTERS=2"}} {
		if got := withFilters(env, count); !slices.Equal(got, want) {
			t.Errorf("%d filters: got %q, want %q", count, got, want)
		}
	}
	if env[1] != "GIVEWAY_FILTERS=1" {
		t.Error("the environment of this process is changed")
	}
}

// TestRunUnderFilters: run tells the shim under how many filters it has tried its calls. Under
// a filter that kills for one of them the program runs as without giveway.
func TestRunUnderFilters(t *testing.T) {
	const harmless = 4000 // no such call
	for _, c := range []struct {
		call      int
		permitted bool
	}{{harmless, true}, {unix.SYS_SOCKET, false}, {unix.SYS_CONNECT, false}, {unix.SYS_RECVMSG, false}, {unix.SYS_MEMBARRIER, false}} {
		t.Run(fmt.Sprint(c.call), func(t *testing.T) {
			cmd := giveway("run", "--class", "batch", "--", "sh", "-c", `echo "filters $GIVEWAY_FILTERS" preload $LD_PRELOAD; exit 3`)
			cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", filterEnv, c.call), "XDG_CACHE_HOME="+t.TempDir())
			var out, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &stderr
			_ = cmd.Run()
			if got := statusOf(cmd); got != "3" {
				t.Fatalf("status: got %s, want the program's 3: %s", got, stderr.String())
			}
			permitted := strings.HasPrefix(out.String(), "filters 1 preload")
			if permitted != c.permitted || !permitted && out.String() != "filters  preload\n" {
				t.Errorf("the program printed %q", out.String())
			}
			if warned := strings.Contains(stderr.String(), "a seccomp filter forbids what giveway needs"); warned == c.permitted {
				t.Errorf("got %q on stderr", stderr.String())
			}
		})
	}
}
