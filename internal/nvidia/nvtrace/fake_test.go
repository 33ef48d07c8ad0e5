package nvtrace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// fakeRM answers as the driver does, and fails the test where the driver would do harm.
// Memory is a memfd, so that mappings are real. Where it can, it decodes with nvgpu's
// structs instead of our offsets.
type fakeRM struct {
	t       *testing.T
	cfg     Config
	refuse  func(call int, step string) error // nvrm.Status, or an errno
	steps   []string
	files   map[*fakeFile]bool
	objects map[nvrm.Handle]*fakeObject
	client  nvrm.Handle
	maker   *fakeFile // made the client
	gpus    []uint32  // the device instances of the GPUs
	device  uint32    // instance of the device that was made

	now      int64
	reason   uint32 // for a refused bind
	hardware [][]byte
	seq      uint16
	ring     struct {
		header, records *fakeObject
		count, get, put uint32
		bound, enabled  bool
	}
}

type fakeObject struct {
	class    uint32
	parent   nvrm.Handle
	size     uint64
	readOnly bool
	linear   uint64
	bytes    []byte // the driver's mapping
}

type fakeFile struct {
	rm     *fakeRM
	f      *os.File
	mapped bool
}

const memfdName = "nvtrace-fake"

func newFake(t *testing.T) *fakeRM {
	rm := &fakeRM{
		t: t, files: map[*fakeFile]bool{}, objects: map[nvrm.Handle]*fakeObject{}, gpus: []uint32{0},
		now: 1_700_000_000_000_000_000, cfg: Config{DevicePattern: filepath.Join(t.TempDir(), "nvidia%d")},
	}
	if err := os.WriteFile(fmt.Sprintf(rm.cfg.DevicePattern, 0), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return rm
}

func (rm *fakeRM) start() (*Trace, error) { return openWith(rm.cfg, rm.open) }

func (rm *fakeRM) step(format string, args ...any) error {
	s := fmt.Sprintf(format, args...)
	rm.steps = append(rm.steps, s)
	if rm.refuse != nil {
		return rm.refuse(len(rm.steps)-1, s)
	}
	return nil
}

func (rm *fakeRM) open() (control, error) {
	if err := rm.step("open"); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	if err != nil {
		rm.t.Fatal(err)
	}
	f := &fakeFile{rm: rm, f: os.NewFile(uintptr(fd), memfdName)}
	rm.files[f] = true
	return f, nil
}

func (f *fakeFile) Fd() int { return int(f.f.Fd()) }

func (f *fakeFile) Close() error {
	delete(f.rm.files, f)
	if f == f.rm.maker {
		f.rm.freeClient()
	}
	return f.f.Close()
}

func (rm *fakeRM) freeClient() {
	for h := range rm.objects {
		rm.free(h)
	}
	rm.client, rm.maker = 0, nil
}

func (rm *fakeRM) free(h nvrm.Handle) {
	o := rm.objects[h]
	delete(rm.objects, h)
	if o != nil && o.bytes != nil {
		if err := unix.Munmap(o.bytes); err != nil {
			rm.t.Error(err)
		}
	}
	for child, c := range rm.objects {
		if c.parent == h {
			rm.free(child)
		}
	}
}

// leaks lists what was not freed.
func (rm *fakeRM) leaks() string {
	var b strings.Builder
	if n := len(rm.files); n != 0 {
		fmt.Fprintf(&b, "%d control files open; ", n)
	}
	if n := len(rm.objects); n != 0 {
		fmt.Fprintf(&b, "%d objects; ", n)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		rm.t.Fatal(err)
	}
	fmt.Fprint(&b, strings.Repeat("a mapping; ", strings.Count(string(maps), memfdName)))
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		rm.t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, filepath.Dir(rm.cfg.DevicePattern)) {
			fmt.Fprint(&b, "the device file; ")
		}
	}
	return b.String()
}

// Ioctl implements nvrm.Ioctler.
func (f *fakeFile) Ioctl(request uint32, arg []byte) error {
	if want := 3<<30 | uint32(len(arg))<<16 | 'F'<<8 | request&0xff; request != want {
		f.rm.t.Errorf("request %08x with %d bytes", request, len(arg))
	}
	do := map[uint32]struct {
		size, status int
		call         func(*fakeFile, []byte) error
	}{
		0x29: {16, 12, (*fakeFile).free},
		0x2a: {32, 28, (*fakeFile).control},
		0x2b: {48, 40, (*fakeFile).alloc},
		0x4e: {56, 40, (*fakeFile).mapMemory},
		0x4f: {32, 24, (*fakeFile).unmapMemory},
	}[request&0xff]
	if do.size != len(arg) {
		f.rm.t.Errorf("request %08x with %d bytes", request, len(arg))
		return unix.EINVAL
	}
	err := do.call(f, arg)
	if s, ok := err.(nvrm.Status); ok {
		le.PutUint32(arg[do.status:], uint32(s))
		return nil
	}
	return err
}

func (f *fakeFile) free(arg []byte) error {
	rm, h := f.rm, nvrm.Handle(le.Uint32(arg[8:]))
	o := rm.objects[h]
	class := uint32(0xffff)
	if o != nil {
		class = o.class
	}
	if err := rm.step("free %04x", class); err != nil {
		return err
	}
	switch parent := nvrm.Handle(le.Uint32(arg[4:])); {
	case h == rm.client:
		rm.freeClient()
	case o == nil || o.parent != parent:
		rm.t.Errorf("free of %v under %v", h, parent)
		return nvrm.ErrInvalidObjectHandle
	}
	rm.free(h)
	return nil
}

func (f *fakeFile) alloc(arg []byte) error {
	rm := f.rm
	root, parent, h := nvrm.Handle(le.Uint32(arg[0:])), nvrm.Handle(le.Uint32(arg[4:])), nvrm.Handle(le.Uint32(arg[8:]))
	class, params := le.Uint32(arg[12:]), paramsAt(le.Uint64(arg[16:]), le.Uint32(arg[32:]))
	if err := rm.step("alloc %04x", class); err != nil {
		return err
	}
	if class == nvgpu.NV01_ROOT_CLIENT {
		rm.client, rm.maker = 0xc1d00042, f
		rm.objects[rm.client] = &fakeObject{class: class}
		le.PutUint32(arg[8:], uint32(rm.client))
		return nil
	}
	if root != rm.client || rm.client == 0 || f != rm.maker {
		return nvrm.ErrInvalidClient
	}
	if h == 0 || rm.objects[h] != nil || rm.objects[parent] == nil {
		rm.t.Errorf("alloc of %04x as %v under %v", class, h, parent)
		return nvrm.ErrInvalidObjectParent
	}
	o := &fakeObject{class: class, parent: parent}
	switch class {
	case nvgpu.NV01_DEVICE_0:
		var p nvgpu.NV0080_ALLOC_PARAMETERS
		rm.decode(&p, params)
		rm.device = p.DeviceID
	case nvgpu.NV20_SUBDEVICE_0:
		var p nvgpu.NV2080_ALLOC_PARAMETERS
		rm.decode(&p, params)
	case nvgpu.NV01_MEMORY_DEVICELESS, nvgpu.NV01_MEMORY_SYSTEM:
		var p nvgpu.NV_MEMORY_ALLOCATION_PARAMS_V545
		rm.decode(&p, params)
		deviceless := parent == rm.client && p.Attr == 1<<29
		scattered := parent != rm.client && p.Attr == 1<<29|1<<27|1<<25
		if class == nvgpu.NV01_MEMORY_DEVICELESS && !deviceless || class == nvgpu.NV01_MEMORY_SYSTEM && !scattered || p.Owner != uint32(rm.client) {
			rm.t.Errorf("memory of class %04x under %v: %+v", class, parent, p)
		}
		o.size, o.readOnly = p.Size, p.Attr2 == 1<<22
	case nvgpu.NV_EVENT_BUFFER:
		if err := rm.newRing(params); err != nil {
			return err
		}
	default:
		rm.t.Errorf("alloc of class %04x", class)
	}
	rm.objects[h] = o
	return nil
}

func (rm *fakeRM) decode(p interface {
	SizeBytes() int
	UnmarshalBytes([]byte) []byte
}, params []byte,
) {
	rm.t.Helper()
	if p.SizeBytes() != len(params) {
		rm.t.Fatalf("%T of %d bytes, want %d", p, len(params), p.SizeBytes())
	}
	p.UnmarshalBytes(params)
}

func (rm *fakeRM) newRing(params []byte) error {
	var p nvgpu.NV_EVENT_BUFFER_ALLOC_PARAMETERS
	rm.decode(&p, params)
	sub := rm.objects[nvrm.Handle(p.HSubDevice.Val)]
	header, records := rm.objects[nvrm.Handle(p.HBufferHeader.Val)], rm.objects[nvrm.Handle(p.HRecordBuffer.Val)]
	switch {
	case sub == nil || sub.class != nvgpu.NV20_SUBDEVICE_0:
		rm.t.Error("kernel oops: event buffer without a subdevice")
	case p.NotificationHandle != 0:
		rm.t.Error("kernel oops: notification handle")
	case p.RecordSize < 32:
		rm.t.Error("kernel memory overwritten: records of less than 32 bytes")
	case header == nil || records == nil || !header.readOnly || !records.readOnly || header.size < 32 || records.size < 32*uint64(p.RecordCount):
		rm.t.Error("event buffer's memory")
	}
	rm.ring.header, rm.ring.records, rm.ring.count = header, records, p.RecordCount
	rm.ring.get, rm.ring.put, rm.ring.bound, rm.ring.enabled = 0, 0, false, false
	clear(header.bytes)
	return nil
}

func (f *fakeFile) mapMemory(arg []byte) error {
	rm := f.rm
	var p nvgpu.IoctlNVOS33ParametersWithFD
	rm.decode(&p, arg)
	if err := rm.step("map"); err != nil {
		return err
	}
	o := rm.objects[nvrm.Handle(p.Params.HMemory.Val)]
	var file *fakeFile
	for g := range rm.files {
		if g.Fd() == int(p.FD) {
			file = g
		}
	}
	switch {
	case o == nil || nvrm.Handle(p.Params.HDevice.Val) != o.parent:
		return nvrm.ErrInvalidObjectParent
	case p.Params.Flags != 1 || p.Params.Length != o.size || p.Params.Offset != 0:
		return nvrm.ErrInvalidArgument
	case file == nil || file.mapped || file == rm.maker:
		return nvrm.ErrStateInUse
	}
	file.mapped = true
	if err := file.f.Truncate(int64(o.size)); err != nil {
		rm.t.Fatal(err)
	}
	bytes, err := unix.Mmap(file.Fd(), 0, int(o.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		rm.t.Fatal(err)
	}
	o.bytes, o.linear = bytes, 0x7f00_0000_0000+uint64(p.FD)<<12
	le.PutUint64(arg[32:], o.linear)
	if err := rm.step("mmap"); err != nil { // a file that cannot be read cannot be mapped
		w, err := os.OpenFile(filepath.Join(rm.t.TempDir(), "w"), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			rm.t.Fatal(err)
		}
		file.f.Close()
		file.f = w
	}
	return nil
}

func (f *fakeFile) unmapMemory(arg []byte) error {
	var p nvgpu.NVOS34_PARAMETERS
	f.rm.decode(&p, arg)
	o := f.rm.objects[nvrm.Handle(p.HMemory.Val)]
	if o == nil || uint64(p.PLinearAddress) != o.linear || nvrm.Handle(p.HDevice.Val) != o.parent {
		f.rm.t.Errorf("unmap of %+v", p)
	}
	if err := f.rm.step("unmap"); err != nil {
		return err
	}
	o.linear = 0
	return nil
}
