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

// Sysfs is where sysfs is mounted: /sys.
type Sysfs string

// Bounds on what is read and believed.
const (
	maxText    = 64 << 10
	maxEntries = 16 << 10 // of one folder
	maxSlots   = 1 << 14
)

func (s Sysfs) path(parts ...string) string {
	return filepath.Join(append([]string{string(s), "class/kfd/kfd"}, parts...)...)
}

// text returns a file's contents, if it is not longer than anything KFD writes.
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

// number returns a file's contents as a number of 32 bits.
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
		return 0, fmt.Errorf("%q is not a number of 32 bits", text)
	}
	return uint32(n), nil
}

// numbers lists the entries of a folder whose names are numbers, in order. Others
// are not ours to know.
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
	Index      uint32 // of the node, CPUs included
	GPU        uint32 // gpu_id: what KFD calls it
	Name       string
	GFX        GFX
	Slots      uint32 // num_cp_queues: hardware slots for compute queues
	XCCs       uint32 // a queue takes a slot in each
	Capability uint32
	ClockMHz   uint32 // max_engine_clk_fcompute
	Render     uint32 // minor of its render node
	Domain     uint32
	Location   uint32
	UniqueID   uint64
}

// Bits of Node.Capability, from kfd_sysfs.h.
const (
	CapTrapDebug         = 0x8000
	CapTrapDebugFirmware = 0x20000000
)

// GFX is the version of an instruction set: 90402 is gfx942.
type GFX uint32

// Major is the generation.
func (g GFX) Major() uint32 { return uint32(g) / 10000 }

func (g GFX) String() string {
	return fmt.Sprintf("gfx%d%x%x", g.Major(), uint32(g)/100%100, uint32(g)%100)
}

// Nodes lists the GPUs. What cannot be understood is left out and told in the
// error, beside what can. A GPU that a container may not use is left out in silence.
func (s Sysfs) Nodes() ([]Node, error) {
	indices, err := s.numbers("topology/nodes")
	if err != nil {
		return nil, fmt.Errorf("read the topology: %w", err)
	}
	var nodes []Node
	var wrong []error
	for _, i := range indices {
		n, err := s.node(i)
		switch {
		case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		case err != nil:
			wrong = append(wrong, fmt.Errorf("node %d: %w", i, err))
		case n.GPU != 0: // else a CPU
			nodes = append(nodes, n)
		}
	}
	return nodes, errors.Join(wrong...)
}

func (s Sysfs) node(index uint32) (Node, error) {
	dir := "topology/nodes/" + strconv.FormatUint(uint64(index), 10)
	n := Node{Index: index, XCCs: 1}
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
	wanted := map[string]*uint32{
		"gfx_target_version": &gfx, "num_cp_queues": &n.Slots, "num_xcc": &n.XCCs, "capability": &n.Capability,
		"max_engine_clk_fcompute": &n.ClockMHz, "drm_render_minor": &n.Render, "domain": &n.Domain, "location_id": &n.Location,
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if at := wanted[key]; at != nil {
			if *at, err = parse(value); err != nil {
				return n, fmt.Errorf("%s: %w", key, err)
			}
		}
		if key == "unique_id" {
			n.UniqueID, _ = strconv.ParseUint(value, 10, 64) // 0: it has none
		}
	}
	n.GFX = GFX(gfx)
	n.XCCs = max(n.XCCs, 1)
	if n.Slots > maxSlots {
		return n, fmt.Errorf("num_cp_queues: %d slots", n.Slots)
	}
	return n, nil
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

// KernelType is of enum kfd_queue_type: what the kernel calls it, and sysfs.
type KernelType uint32

// IsCompute reports whether a queue of that type takes a compute slot.
func (t KernelType) IsCompute() bool { return t == 0 }

// Queue is a queue as sysfs has it. Its id is its process's own.
type Queue struct {
	PID  int
	ID   uint32
	GPU  uint32
	Type KernelType
	Size uint32 // of its ring
}

// Key names it within its process.
func (q Queue) Key() QueueKey { return QueueKey{q.GPU, q.ID} }

// Processes lists the processes that use KFD, by their numbers in the first pid
// namespace.
func (s Sysfs) Processes() ([]int, error) {
	found, err := s.numbers("proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, n := range found {
		if n > 0 && n <= 1<<22 { // PID_MAX_LIMIT
			pids = append(pids, int(n))
		}
	}
	return pids, nil
}

// Queues lists the queues of a process. One that vanishes meanwhile is left out;
// what cannot be understood is too, and told in the error.
func (s Sysfs) Queues(pid int) ([]Queue, error) {
	ids, err := s.numbers("proc", strconv.Itoa(pid), "queues")
	if err != nil {
		return nil, fmt.Errorf("queues of process %d: %w", pid, err)
	}
	var queues []Queue
	var wrong []error
	for _, id := range ids {
		q, err := s.queue(pid, id)
		switch {
		case err == nil:
			queues = append(queues, q)
		case !gone(err):
			wrong = append(wrong, fmt.Errorf("queue %d of process %d: %w", id, pid, err))
		}
	}
	return queues, errors.Join(wrong...)
}

func (s Sysfs) queue(pid int, id uint32) (Queue, error) {
	dir := fmt.Sprintf("proc/%d/queues/%d", pid, id)
	q := Queue{PID: pid, ID: id}
	gpu, err := s.number(dir, "gpuid")
	kind, err2 := s.number(dir, "type")
	size, err3 := s.number(dir, "size")
	q.GPU, q.Type, q.Size = gpu, KernelType(kind), size
	return q, errors.Join(err, err2, err3)
}

// gone is for a file that went between being listed and being read.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
