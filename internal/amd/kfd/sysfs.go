package kfd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysfs is the directory where sysfs is mounted: /sys.
type Sysfs string

// Limits on what is read and accepted.
const (
	maxText    = 64 << 10
	maxEntries = 16 << 10 // of one directory
	maxSlots   = 1 << 14
	maxPID     = 1 << 22 // PID_MAX_LIMIT
)

func (s Sysfs) path(parts ...string) string {
	return filepath.Join(append([]string{string(s), "class/kfd/kfd"}, parts...)...)
}

// text returns the contents of a file without surrounding space.
func (s Sysfs) text(parts ...string) (string, error) {
	f, err := os.Open(s.path(parts...))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(b) > maxText {
		err = fmt.Errorf("%s: more than %d bytes", f.Name(), maxText)
	}
	return strings.TrimSpace(string(b)), err
}

// number returns the contents of a file as a 32-bit number.
func (s Sysfs) number(parts ...string) (uint32, error) {
	text, err := s.text(parts...)
	if err != nil {
		return 0, err
	}
	n, err := parse(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.path(parts...), err)
	}
	return n, nil
}

func parse(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		if len(text) > 20 {
			text = text[:20] + "..."
		}
		return 0, fmt.Errorf("%q is not a 32-bit number", text)
	}
	return uint32(n), nil
}

// numbers lists the entries of a directory whose names are numbers, in order, and ignores
// all others.
func (s Sysfs) numbers(parts ...string) ([]uint32, error) {
	d, err := os.Open(s.path(parts...))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var found []uint32
	for _, name := range names {
		if n, err := parse(name); err == nil {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}

// Node is a GPU of the topology.
type Node struct {
	Index      uint32 // of the topology node; CPUs are nodes as well
	GPU        uint32 // gpu_id, which identifies the GPU in ioctls
	Name       string
	GFX        GFX
	Slots      uint32 // num_cp_queues: hardware slots for compute queues
	Capability uint32
	UniqueID   uint64 // zero: none
	Save       SaveArea
}

// SaveArea is how much memory the driver demands of a queue for the state of its waves
// (CWSR). The driver computes the sizes from the GPU's version, whether CWSR is on or off.
type SaveArea struct {
	Size  uint32 // cwsr_size
	Stack uint32 // ctl_stack_size, which is a part of it
	Known bool   // false: the driver does not tell, as before Linux 6.12
}

// Bits of Node.Capability, from kfd_sysfs.h.
const (
	CapTrapDebug         = 0x8000
	CapTrapDebugFirmware = 0x20000000
)

// GFX is the version of an instruction set: 90402 is gfx942.
type GFX uint32

// Major returns the generation: 9 for gfx942.
func (g GFX) Major() uint32 { return uint32(g) / 10000 }

func (g GFX) String() string {
	return fmt.Sprintf("gfx%d%x%x", g.Major(), uint32(g)/100%100, uint32(g)%100)
}

// Nodes lists the GPUs. A node that cannot be parsed is left out and named in the error. A
// GPU that a container may not use is left out without an error.
func (s Sysfs) Nodes() ([]Node, error) {
	indices, err := s.numbers("topology/nodes")
	if err != nil {
		return nil, fmt.Errorf("read the topology: %w", err)
	}
	var nodes []Node
	var errs []error
	for _, i := range indices {
		n, err := s.node(i)
		switch {
		case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, fmt.Errorf("node %d: %w", i, err))
		case n.GPU != 0: // zero: a CPU
			nodes = append(nodes, n)
		}
	}
	return nodes, errors.Join(errs...)
}

func (s Sysfs) node(index uint32) (Node, error) {
	dir := "topology/nodes/" + strconv.FormatUint(uint64(index), 10)
	n := Node{Index: index}
	var err error
	if n.GPU, err = s.number(dir, "gpu_id"); err != nil || n.GPU == 0 {
		return n, err
	}
	name, err := s.text(dir, "name")
	if err != nil {
		return n, err
	}
	n.Name = printable(name)
	text, err := s.text(dir, "properties")
	if err != nil {
		return n, err
	}
	var gfx uint32
	fields := map[string]*uint32{
		"gfx_target_version": &gfx, "num_cp_queues": &n.Slots, "capability": &n.Capability,
		"cwsr_size": &n.Save.Size, "ctl_stack_size": &n.Save.Stack,
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if field := fields[key]; field != nil {
			if *field, err = parse(value); err != nil {
				return n, fmt.Errorf("%s: %w", key, err)
			}
			n.Save.Known = n.Save.Known || key == "cwsr_size"
		}
		if key == "unique_id" {
			n.UniqueID, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	n.GFX = GFX(gfx)
	if n.Slots > maxSlots {
		return n, fmt.Errorf("num_cp_queues: %d slots, want at most %d", n.Slots, maxSlots)
	}
	return n, nil
}

// CWSREnabled reads amdgpu's parameter cwsr_enable: 0 turns CWSR off. The driver does not
// change it after it is loaded.
func (s Sysfs) CWSREnabled() (bool, error) {
	path := filepath.Join(string(s), "module/amdgpu/parameters/cwsr_enable")
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return false, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return false, fmt.Errorf("%s: not a number", path)
	}
	return n != 0, nil
}

func printable(name string) string {
	keep := func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return -1
	}
	return strings.Map(keep, name[:min(len(name), 64)])
}

// Queue is a queue that sysfs lists.
type Queue struct {
	PID  int
	ID   uint32 // unique within the process
	GPU  uint32
	Type uint32 // enum kfd_queue_type
}

// IsCompute reports whether the queue takes a compute slot.
func (q Queue) IsCompute() bool { return q.Type == 0 } // KFD_QUEUE_TYPE_COMPUTE

// Processes lists the processes that use KFD, by their pids in the initial pid namespace.
func (s Sysfs) Processes() ([]int, error) {
	found, err := s.numbers("proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, n := range found {
		if n > 0 && n <= maxPID {
			pids = append(pids, int(n))
		}
	}
	return pids, nil
}

// Queues lists the queues of a process. A queue that vanishes meanwhile is left out. A
// queue that cannot be parsed is left out and named in the error.
func (s Sysfs) Queues(pid int) ([]Queue, error) {
	ids, err := s.numbers("proc", strconv.Itoa(pid), "queues")
	if err != nil {
		return nil, fmt.Errorf("queues of process %d: %w", pid, err)
	}
	var queues []Queue
	var errs []error
	for _, id := range ids {
		q, err := s.queue(pid, id)
		switch {
		case err == nil:
			queues = append(queues, q)
		case !vanished(err):
			errs = append(errs, fmt.Errorf("queue %d of process %d: %w", id, pid, err))
		}
	}
	return queues, errors.Join(errs...)
}

func (s Sysfs) queue(pid int, id uint32) (Queue, error) {
	dir := fmt.Sprintf("proc/%d/queues/%d", pid, id)
	gpu, err := s.number(dir, "gpuid")
	kind, err2 := s.number(dir, "type")
	return Queue{PID: pid, ID: id, GPU: gpu, Type: kind}, errors.Join(err, err2)
}

// Memory returns how many bytes of a GPU's memory a process has. Zero also stands for a process or
// GPU that sysfs does not know.
func (s Sysfs) Memory(pid int, gpu uint32) (uint64, error) {
	text, err := s.text("proc", strconv.Itoa(pid), fmt.Sprintf("vram_%d", gpu))
	if vanished(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: not a number of bytes", pid)
	}
	return n, nil
}

// vanished reports whether a file went away between being listed and being read.
func vanished(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
