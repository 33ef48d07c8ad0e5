package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MPSControl is NVIDIA's program that controls MPS.
const MPSControl = "nvidia-cuda-mps-control"

// mpsTimeout limits a call of it.
const mpsTimeout = 20 * time.Second

// noMPS returns why there is no MPS server to measure with, or an empty string.
func (h *harness) noMPS() string {
	if h.hip {
		return "MPS is NVIDIA's"
	}
	if h.MPSControl == "" {
		return "left out by --mps=false"
	}
	if _, err := exec.LookPath(h.MPSControl); err != nil {
		return err.Error()
	}
	return ""
}

// mpsServer is an MPS control daemon of the benchmark's own, with its server.
type mpsServer struct {
	control, dir string
}

func startMPS(ctx context.Context, control string) (*mpsServer, error) {
	dir, err := os.MkdirTemp("", "giveway-bench-mps-")
	if err != nil {
		return nil, err
	}
	m := &mpsServer{control, dir}
	if _, err := m.call(ctx, "", "-d"); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start an MPS control daemon: %w", err)
	}
	return m, nil
}

// env returns the environment of a client. Client priority 0 is the higher of the two.
func (m *mpsServer) env(online bool) []string {
	priority := "1"
	if online {
		priority = "0"
	}
	return append(m.folders(), "CUDA_MPS_CLIENT_PRIORITY="+priority)
}

func (m *mpsServer) folders() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + m.dir, "CUDA_MPS_LOG_DIRECTORY=" + m.dir}
}

// call runs the control program with arguments and input, and returns its output.
func (m *mpsServer) call(ctx context.Context, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, mpsTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.control, args...)
	cmd.Env = append(os.Environ(), m.folders()...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second // the daemon may keep the output open
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", m.control, strings.TrimSpace(input+strings.Join(args, " ")), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// serverOf returns the MPS server that the environment of a process names, or nil.
func serverOf(pid int, control string) *mpsServer {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for variable := range strings.SplitSeq(string(text), "\x00") {
		if dir, ok := strings.CutPrefix(variable, "CUDA_MPS_PIPE_DIRECTORY="); ok {
			return &mpsServer{cmp.Or(control, MPSControl), dir}
		}
	}
	return nil
}

// check returns an error if a process is not a client of the server.
func (m *mpsServer) check(ctx context.Context, cl *client) error {
	servers, err := m.call(ctx, "get_server_list\n")
	if err != nil {
		return err
	}
	var known []string
	for _, server := range strings.Fields(servers) {
		list, err := m.call(ctx, "get_client_list "+server+"\n")
		if err != nil {
			return err
		}
		known = append(known, strings.Fields(list)...)
	}
	if !slices.Contains(known, strconv.Itoa(cl.pid)) {
		return cl.error(fmt.Sprintf("process %d is not a client of the MPS server in %s, which has %q", cl.pid, m.dir, known))
	}
	return nil
}

// stop ends the server, its control daemon, and their folder. It kills the control daemon
// if that does not end by itself.
func (m *mpsServer) stop() {
	text, _ := os.ReadFile(filepath.Join(m.dir, "nvidia-cuda-mps-control.pid"))
	_, err := m.call(context.Background(), "quit -t 2\n")
	if pid, bad := strconv.Atoi(strings.TrimSpace(string(text))); err != nil && bad == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = os.RemoveAll(m.dir)
}
