package packaging

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hip/hiptest"
)

var amdBundle = flag.String("amd-bundle", "", "run all groups that can run on doubles, of this folder made by make amd-bundle")

// inNamespace is the environment variable that makes the test run amd-tests.sh on the
// doubles. Its process has mounts of its own.
const inNamespace = "GIVEWAY_TEST_AMD_DRIVER"

// TestAMDBundle runs amd-tests.sh on the doubles of KFD, stock and patched, and of HIP, at
// /dev/kfd and below /sys in a mount namespace of its own. The programs are the real ones.
func TestAMDBundle(t *testing.T) {
	if driver := os.Getenv(inNamespace); driver != "" {
		runOnDoubles(t, driver)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can mount the doubles")
	}
	bundle, out, groups := *amdBundle, t.TempDir(), []string{"contract", "stops", "bench", "daemon", "soak"}
	drivers, quick := []string{"patched", "stock"}, "1"
	if bundle == "" { // the short form
		if testing.Short() {
			t.Skip("builds programs")
		}
		bundle, groups, drivers = shortBundle(t), []string{"stops"}, drivers[:1]
		quick = "least"
	} else {
		out = filepath.Join(bundle, "results-on-doubles")
	}
	hip := hiptest.Build(t, 6)
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			results := filepath.Join(out, driver)
			cmd := exec.Command("/proc/self/exe", "-test.run", "^TestAMDBundle$", "-test.v")
			cmd.Env = append(os.Environ(), inNamespace+"="+driver, "LD_LIBRARY_PATH="+hip, "BUNDLE="+bundle, "RESULTS="+results, "GROUPS="+strings.Join(groups, " "), "QUICK="+quick)
			cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
			text, err := cmd.CombinedOutput()
			t.Logf("%s", text)
			if strings.Contains(string(text), "--- SKIP: TestAMDBundle") {
				t.Skip("the doubles cannot be mounted here")
			}
			if err != nil {
				t.Error(err)
			}
			checkTargets(t, filepath.Join(results, "targets.md"), driver)
		})
	}
}

// checkTargets checks that the table has a figure for each target, and calls none of them
// that of a GPU.
func checkTargets(t *testing.T, file, driver string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "**Double, not hardware") {
		t.Error("the table does not say that it is of a double")
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "met?") {
			continue
		}
		rows++
		measured, verdict := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		switch {
		case strings.HasPrefix(measured, "not measured: ") && driver == "stock" && strings.Contains(line, "batch"):
		case strings.HasPrefix(measured, "not measured: ") && driver == "stock" && strings.Contains(line, "remap"):
		case strings.HasPrefix(measured, "not measured: n") && *amdBundle == "" && !strings.Contains(line, " of 10 queues"): // the short form leaves it out
		case verdict != "double, not hardware":
			t.Errorf("got %s, want a measured figure, labelled", strings.TrimSpace(line))
		}
	}
	if rows != 11 {
		t.Errorf("got %d rows, want 11:\n%s", rows, text)
	}
}

// shortBundle builds the part of the bundle that the short form needs.
func shortBundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "../cmd/giveway", "../cmd/giveway-bench")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, cmd := range []*exec.Cmd{build, exec.Command("cp", "amd-tests.sh", dir)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	return dir
}

// checkNamespace ends the test unless the mounts of this process are its own: otherwise
// those below would replace the machine's /dev.
func checkNamespace(t *testing.T) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/mnt")
	parents, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	table, err3 := os.ReadFile("/proc/self/mountinfo")
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	if own == parents || strings.Contains(string(table), " shared:") {
		t.Fatal("this process does not have mounts of its own")
	}
}

// runOnDoubles mounts the doubles and runs amd-tests.sh.
func runOnDoubles(t *testing.T, driver string) {
	checkNamespace(t)
	sys, page := t.TempDir(), newPage(t)
	k := kfdtest.New(kfdtest.Config{Patched: driver == "patched", Sys: sys, Engine: page})
	mount := kfdtest.Mounted(t, k)
	replaceDev(t, mount.Path)
	replaceSys(t, sys)
	args := append([]string{filepath.Join(os.Getenv("BUNDLE"), "amd-tests.sh"), "-o", os.Getenv("RESULTS"), "--soak", "5s"}, strings.Fields(os.Getenv("GROUPS"))...)
	cmd := exec.Command("bash", args...)
	cmd.Env = append(os.Environ(), "GIVEWAY_DOUBLE=1", "GIVEWAY_QUICK="+os.Getenv("QUICK"), "HIPDOUBLE_KFD=/dev/kfd", "HIPDOUBLE_PAGE="+page.path, fmt.Sprintf("HIPDOUBLE_GPU=%d", kfdtest.MI300X.GPU))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// replaceDev mounts a /dev over the machine's that has the double of KFD and the few devices
// that programs need. No folder of the machine is mounted anywhere, so that nothing that
// cleans up can reach one.
func replaceDev(t *testing.T, kfd string) {
	t.Helper()
	mountOver(t, "/dev", func(dir string) error {
		for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "fuse"} {
			if err := bindFile(filepath.Join("/dev", name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		for name, link := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
			if err := os.Symlink(link, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return errors.Join(os.Mkdir(filepath.Join(dir, "shm"), 0o777), bindFile(kfd, filepath.Join(dir, "kfd")))
	})
}

// replaceSys mounts a /sys over the machine's that has only the double's files.
func replaceSys(t *testing.T, files string) {
	t.Helper()
	mountOver(t, "/sys", func(dir string) error {
		entries, err := os.ReadDir(files)
		for _, e := range entries {
			err = errors.Join(err, os.Symlink(filepath.Join(files, e.Name()), filepath.Join(dir, e.Name())))
		}
		return err
	})
}

// mountOver fills a new file system and moves it over a folder. It skips the test where
// mounts are not possible.
func mountOver(t *testing.T, folder string, fill func(dir string) error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "giveway-mount-")
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755")
	if err == nil {
		if err = fill(dir); err == nil {
			err = unix.Mount(dir, folder, "", unix.MS_MOVE, "")
		}
		if err != nil {
			err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	err = errors.Join(err, os.Remove(dir)) // never recursively
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mounts are not possible here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bindFile makes a file appear at another path.
func bindFile(source, target string) error {
	if err := os.WriteFile(target, nil, 0o644); err != nil {
		return err
	}
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

// page is the file through which the double of KFD tells that of HIP which queues are
// stopped: slots of four words, pid, queue, stopped and busy. It implements
// kfdtest.Engine.
type page struct {
	path string
	mu   sync.Mutex
	mem  []byte
	at   map[kfdtest.QueueID]int // offset of the queue's slot
}

const slots, slotSize = 1024, 16

func newPage(t *testing.T) *page {
	t.Helper()
	p := &page{path: filepath.Join(t.TempDir(), "page"), at: map[kfdtest.QueueID]int{}}
	for _, dir := range []string{filepath.Dir(p.path), filepath.Dir(filepath.Dir(p.path))} { // programs of any user open it
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o666)
	if err == nil {
		defer f.Close()
		err = f.Truncate(slots * slotSize)
	}
	if err == nil {
		p.mem, err = unix.Mmap(int(f.Fd()), 0, slots*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		err = os.Chmod(p.path, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *page) word(at, i int) []byte { return p.mem[at+4*i : at+4*i+4] }

// Opened implements kfdtest.Engine.
func (p *page) Opened(id kfdtest.QueueID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := 0; at < len(p.mem); at += slotSize {
		if binary.LittleEndian.Uint32(p.word(at, 0)) != 0 {
			continue
		}
		p.at[id] = at
		binary.LittleEndian.PutUint32(p.word(at, 1), id.Queue)
		binary.LittleEndian.PutUint32(p.word(at, 2), 0)
		binary.LittleEndian.PutUint32(p.word(at, 3), 0)
		binary.LittleEndian.PutUint32(p.word(at, 0), uint32(id.PID))
		return
	}
	panic("packaging: more queues than the page has slots")
}

func (p *page) set(id kfdtest.QueueID, word int, value uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, known := p.at[id]; known {
		binary.LittleEndian.PutUint32(p.word(at, word), value)
	}
}

// Closed implements kfdtest.Engine.
func (p *page) Closed(id kfdtest.QueueID) {
	p.set(id, 3, 0)
	p.set(id, 0, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.at, id)
}

// Interrupt implements kfdtest.Engine.
func (p *page) Interrupt(id kfdtest.QueueID) { p.set(id, 2, 1) }

// Restore implements kfdtest.Engine.
func (p *page) Restore(id kfdtest.QueueID) { p.set(id, 2, 0) }
