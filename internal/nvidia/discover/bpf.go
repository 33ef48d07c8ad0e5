package discover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// requests are the ioctl numbers that the programs look for, without the direction bits,
// which the driver ignores too. Sizes from nvos.h, escapes from nv_escape.h.
type requests struct {
	alloc []uint32 // NV_ESC_RM_ALLOC with NVOS21_PARAMETERS or NVOS64_PARAMETERS
	free  uint32   // NV_ESC_RM_FREE with NVOS00_PARAMETERS
}

const (
	noDirection = 1<<30 - 1
	maxArg      = nvrm.SizeNVOS64
)

var rmRequests = requests{
	alloc: []uint32{nvrm.SizeNVOS21<<16 | 'F'<<8 | 0x2b, nvrm.SizeNVOS64<<16 | 'F'<<8 | 0x2b},
	free:  nvrm.SizeNVOS00<<16 | 'F'<<8 | 0x29,
}

// A sample describes a call that succeeded. The eBPF program sends it:
//
//	0      4    8         12   16                     64
//	tgid | fd | request | 0 | the argument, 48 bytes |
const sampleSize = 16 + maxArg

// call is a successful allocation or free. Its content comes from the memory of the process
// after the call, so it says where to look and proves nothing.
type call struct {
	pid    int
	fd     int
	free   bool
	client nvrm.Handle
	object nvrm.Handle
	class  uint32 // of an allocated object
}

// decode decodes a sample. It returns false for a call that RM refused.
func (r requests) decode(b []byte) (call, bool) {
	if len(b) < sampleSize {
		return call{}, false
	}
	le := binary.LittleEndian
	request, arg := le.Uint32(b[8:]), b[16:]
	c := call{
		pid:    int(le.Uint32(b)),
		fd:     int(int32(le.Uint32(b[4:]))),
		free:   request == r.free,
		client: nvrm.Handle(le.Uint32(arg)),
		object: nvrm.Handle(le.Uint32(arg[8:])),
	}
	status := 28 // its offset in NVOS21
	if request>>16 == nvrm.SizeNVOS64 {
		status = 40
	}
	if c.free {
		status = 12
	} else {
		c.class = le.Uint32(arg[12:])
	}
	return c, c.pid > 0 && c.fd >= 0 && le.Uint32(arg[status:]) == uint32(nvrm.OK)
}

// registers holds offsets in the struct pt_regs of a processor. From
// arch/*/include/asm/ptrace.h.
type registers struct {
	nr      int32 // system call number of ioctl
	args    int32 // offset of three consecutive registers with the arguments
	fd      int16 // offsets of the arguments from there
	request int16
	arg     int16
	call    int32 // offset of the number of the system call
}

var registersOf = map[string]registers{
	"amd64": {nr: 16, args: 96, arg: 0, request: 8, fd: 16, call: 120},
	"arm64": {nr: 29, args: 0, fd: 0, request: 8, arg: 16, call: 280},
}

// tracer reports RM allocations and frees of all processes. Nothing is pinned: the kernel
// removes everything when this process exits.
type tracer struct {
	requests requests
	inflight *ebpf.Map // thread -> argument, request, fd
	ring     *ebpf.Map
	lost     *ebpf.Map // number of samples for which the ring had no room
	programs []*ebpf.Program
	links    []link.Link
	reader   *ringbuf.Reader
}

// initPIDNamespace is the inode of the initial pid namespace, PROC_PID_INIT_INO.
const initPIDNamespace = 0xeffffffc

var errPIDNamespace = errors.New("not in the initial pid namespace, whose pids the kernel reports")

// trace loads and attaches the programs. After an error nothing is left behind.
func trace(want requests) (_ *tracer, err error) {
	regs, ok := registersOf[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("not available on %s", runtime.GOARCH)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		return nil, fmt.Errorf("read pid namespace: %w", err)
	}
	if ns.Ino != initPIDNamespace {
		return nil, errPIDNamespace
	}
	// Before Linux 5.11 maps count as locked memory. If the limit matters and cannot be
	// raised, making the maps fails.
	_ = rlimit.RemoveMemlock()

	t := &tracer{requests: want}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	// An LRU map, because a thread that exits in a call leaves its entry behind.
	for _, m := range []struct {
		into **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&t.inflight, ebpf.MapSpec{Name: "gw_inflight", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 8192}},
		{&t.ring, ebpf.MapSpec{Name: "gw_calls", Type: ebpf.RingBuf, MaxEntries: 1 << 18}},
		{&t.lost, ebpf.MapSpec{Name: "gw_lost", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
	} {
		if *m.into, err = ebpf.NewMap(&m.spec); err != nil {
			return nil, fmt.Errorf("make map %s: %w", m.spec.Name, err)
		}
	}
	// sys_exit first: otherwise the exits of the first calls would be missed.
	for _, p := range []struct {
		point string
		code  asm.Instructions
	}{
		{"sys_exit", t.exit(regs)},
		{"sys_enter", t.enter(regs)},
	} {
		if err := t.attach(p.point, p.code); err != nil {
			return nil, err
		}
	}
	if t.reader, err = ringbuf.NewReader(t.ring); err != nil {
		return nil, fmt.Errorf("read ring: %w", err)
	}
	return t, nil
}

func (t *tracer) attach(point string, code asm.Instructions) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gw_" + point, Type: ebpf.RawTracepoint, Instructions: code,
		License: "Dual BSD/GPL", // required for bpf_probe_read_user
	})
	if err != nil {
		return fmt.Errorf("load program for %s: %w", point, err)
	}
	t.programs = append(t.programs, p)
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: point, Program: p})
	if err != nil {
		return fmt.Errorf("attach to raw tracepoint %s: %w", point, err)
	}
	t.links = append(t.links, l)
	return nil
}

// Close detaches and unloads the programs. A waiting Read returns os.ErrClosed.
func (t *tracer) Close() {
	if t.reader != nil {
		t.reader.Close()
	}
	for _, l := range t.links {
		l.Close()
	}
	for _, p := range t.programs {
		p.Close()
	}
	for _, m := range []*ebpf.Map{t.inflight, t.ring, t.lost} {
		m.Close() // also valid for nil
	}
}

// Read waits for the next call.
func (t *tracer) Read() (call, error) {
	for {
		r, err := t.reader.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return call{}, os.ErrClosed
		}
		if err != nil {
			return call{}, err
		}
		if c, ok := t.requests.decode(r.RawSample); ok {
			return c, nil
		}
	}
}

// Lost returns for how many calls the ring had no room so far.
func (t *tracer) Lost() uint64 {
	var n uint64
	_ = t.lost.Lookup(uint32(0), &n) // an element of an array always exists
	return n
}
