package nvrm_test

import (
	"encoding/binary"
	"errors"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// driver is the control file of a real driver, which may not exist here.
const driver = "/dev/nvidiactl"

var uuid = [16]byte{0x6d, 0xa7, 0x56, 0x86, 0x2f, 0x9f, 0x1a, 0x32, 0x6b, 0x54, 0x1e, 0x6f, 0x31, 0x70, 0x5c, 0x88}

// TestDoubleAnswersAsDriver checks the driver double and, where there is one, the real
// driver against the same answers. It uses only objects that it makes.
func TestDoubleAnswersAsDriver(t *testing.T) {
	t.Run("InMemory", func(t *testing.T) {
		rm := nvrmtest.New(nvrmtest.Config{UUID: uuid})
		contract(t, func() nvrm.Ioctler { return rm.Open() })
	})
	open := func(t *testing.T, path string) func() nvrm.Ioctler {
		return func() nvrm.Ioctler {
			f, err := nvrm.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}
	}
	t.Run("Mounted", func(t *testing.T) {
		m := nvrmtest.Mounted(t, nvrmtest.New(nvrmtest.Config{UUID: uuid}))
		contract(t, open(t, m.Path))
	})
	t.Run("Real", func(t *testing.T) {
		if _, err := os.Stat(driver); err != nil {
			t.Skipf("no NVIDIA driver: %v", err)
		}
		gpu, err := nvrm.OpenGPU("/dev/nvidia%d", -1) // RM makes a device only for a process that has it open
		if err != nil {
			t.Skipf("no GPU: %v", err)
		}
		defer gpu.Close()
		contract(t, open(t, driver))
		if err := nvrm.SelfTest(open(t, driver)()); err != nil {
			t.Errorf("self-test: got %v, want no error", err)
		}
	})
}

const (
	device    nvrm.Handle = 0x5c000002
	subdevice nvrm.Handle = 0x5c000003
	group     nvrm.Handle = 0x5c000015
	unknown   nvrm.Handle = 0x5c0003ff
)

// contract checks every call that needs no channel. Only CUDA knows how to make those.
func contract(t *testing.T, open func() nvrm.Ioctler) {
	f := open()
	c := client(t, f)
	if _, err := nvrm.Alloc(f, c, c, device, nvrm.ClassDevice, make([]byte, 56)); err != nil {
		t.Fatal(err)
	}
	if _, err := nvrm.Alloc(f, c, device, subdevice, nvrm.ClassSubdevice, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	groupParams := make([]byte, 20)
	groupParams[12] = 1
	if _, err := nvrm.Alloc(f, c, device, group, nvrm.ClassChannelGroup, groupParams); err != nil {
		t.Fatal(err)
	}
	control := func(file nvrm.Ioctler, client, object nvrm.Handle, cmd uint32, size int) error {
		return nvrm.Control(file, client, object, cmd, make([]byte, size))
	}
	for _, tt := range []struct {
		name string
		err  error
		want nvrm.Status
	}{
		{"another open file", control(open(), c, c, nvrmtest.GetHandleInfo, 16), nvrm.ErrInvalidClient},
		{"an unknown client", control(f, 0xc1dfffff, 0xc1dfffff, nvrmtest.GetHandleInfo, 16), nvrm.ErrInvalidClient},
		{"an unknown object", control(f, c, unknown, nvrmtest.GetInfo, 4), nvrm.ErrObjectNotFound},
		{"an unknown control", control(f, c, subdevice, 0x2080fff0, 4), nvrm.ErrNotSupported},
		{"a control of another class", control(f, c, subdevice, nvrmtest.GetInfo, 4), nvrm.ErrNotSupported},
		{"a wrong size", control(f, c, group, nvrmtest.GetTimeslice, 4), nvrm.ErrInvalidArgument},
		{"no parameters", control(f, c, group, nvrmtest.GetTimeslice, 0), nvrm.ErrInvalidArgument},
		{"handle information of handle 0", control(f, c, c, nvrmtest.GetHandleInfo, 16), nvrm.ErrObjectNotFound},
		{"an unknown class", allocOf(f, c, c, 0, 0xfff0), nvrm.ErrInvalidClass},
		{"an unknown parent", allocOf(f, c, unknown, 0, nvrm.ClassSubdevice), nvrm.ErrObjectNotFound},
		{"a parent of the wrong class", allocOf(f, c, c, 0, nvrm.ClassSubdevice), nvrm.ErrInvalidObjectParent},
		{"a handle in use", allocOf(f, c, device, subdevice, nvrm.ClassSubdevice), 0x19},
		{"the handle of the client", allocOf(f, c, device, c, nvrm.ClassSubdevice), nvrm.ErrInvalidObjectParent},
		{"an object of an unknown client", allocOf(f, 0xc1dfffff, 0xc1dfffff, 0, nvrm.ClassDevice), nvrm.ErrInvalidObjectHandle},
		{"free an unknown object", nvrm.Free(f, c, device, unknown), nvrm.OK},
		{"free an unknown client", nvrm.Free(f, 0xc1dfffff, 0, 0xc1dfffff), nvrm.ErrInvalidObjectHandle},
		{"free an object of another file's client", nvrm.Free(open(), c, device, group), nvrm.ErrInvalidClient},
	} {
		if tt.want == nvrm.OK && tt.err != nil || tt.want != nvrm.OK && !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
	contractOwner(t, f, open(), c)
	contractDisable(t, f, c)
	for _, request := range []uint32{0xc02046fe, 0xc010462a, 0xc021462b, 0xc0084629} {
		if err := f.Ioctl(request, make([]byte, 64)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("ioctl %08x: got %v, want EINVAL", request, err)
		}
	}
	contractObjects(t, f, c)
	contractGroup(t, nvrm.Group{File: f, Client: c, Handle: group})
	if err := nvrm.Free(f, c, c, device); err != nil {
		t.Error(err)
	}
	for _, h := range []nvrm.Handle{device, subdevice, group} {
		if _, err := nvrm.Lookup(f, c, h); !nvrm.IsGone(err) {
			t.Errorf("%v after its device was freed: got %v, want a status that means gone", h, err)
		}
	}
	if err := nvrm.Free(f, c, 0, c); err != nil {
		t.Error(err)
	}
	if _, err := nvrm.Lookup(f, c, c); !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("a freed client: got %v, want NV_ERR_INVALID_CLIENT", err)
	}
}

func client(t *testing.T, f nvrm.Ioctler) nvrm.Handle {
	t.Helper()
	c, err := nvrm.Alloc(f, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c&^nvrm.ClientMask != 0xc1d00000 {
		t.Errorf("client: got %v, want c1dxxxxx", c)
	}
	return c
}

func allocOf(f nvrm.Ioctler, client, parent, handle nvrm.Handle, class uint32) error {
	_, err := nvrm.Alloc(f, client, parent, handle, class, make([]byte, 4))
	return err
}

// contractOwner checks OwnerOf for a client of this file, of another file, a freed one
// and one that never was. The second answer must equal the first.
func contractOwner(t *testing.T, f, other nvrm.Ioctler, c nvrm.Handle) {
	next, err := nvrm.NewClient(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := nvrm.Free(other, next, 0, next); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		name   string
		f      nvrm.Ioctler
		client nvrm.Handle
		want   nvrm.Owner
	}{
		{"own client", f, c, nvrm.ThisFile},
		{"client of another file", other, c, nvrm.OtherFile},
		{"own client, again", f, c, nvrm.ThisFile},
		{"freed client", other, next, nvrm.NoFile},
		{"client that never was", f, 0xc1dfffff, nvrm.NoFile},
		{"handle 0", f, 0, nvrm.NoFile},
		{"handle of an object", f, device, nvrm.NoFile},
	} {
		if got, err := nvrm.OwnerOf(tt.f, tt.client); got != tt.want || err != nil {
			t.Errorf("owner of %s: got %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
}

// contractDisable checks the statuses with which a wrong list of channels is refused.
func contractDisable(t *testing.T, f nvrm.Ioctler, c nvrm.Handle) {
	const noEvent = 0
	for _, tt := range []struct {
		name    string
		count   uint32
		client  nvrm.Handle
		channel nvrm.Handle
		event   uint64
		want    nvrm.Status
	}{
		{"no channels", 0, c, unknown, noEvent, nvrm.ErrInvalidParamStruct},
		{"too many", 65, c, unknown, noEvent, nvrm.ErrInvalidParamStruct},
		{"an unknown channel", 1, c, unknown, noEvent, nvrm.ErrInvalidChannel},
		{"an unknown client", 1, 0xc1dfffff, unknown, noEvent, nvrm.ErrInvalidChannel},
		{"a kernel's event", 1, c, unknown, 4096, nvrm.ErrInsufficientPermissions},
	} {
		params := make([]byte, 536)
		params[0] = 1
		binary.LittleEndian.PutUint32(params[4:], tt.count)
		binary.LittleEndian.PutUint64(params[16:], tt.event)
		binary.LittleEndian.PutUint32(params[24:], uint32(tt.client))
		binary.LittleEndian.PutUint32(params[280:], uint32(tt.channel))
		if err := nvrm.Control(f, c, subdevice, nvrmtest.DisableChannels, params); !errors.Is(err, tt.want) {
			t.Errorf("disable %s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func contractObjects(t *testing.T, f nvrm.Ioctler, c nvrm.Handle) {
	want := []nvrm.Object{
		{Handle: device, Parent: c, Class: nvrm.ClassDevice},
		{Handle: subdevice, Parent: device, Class: nvrm.ClassSubdevice},
		{Handle: group, Parent: device, Class: nvrm.ClassChannelGroup},
	}
	got, err := nvrm.Objects(f, c, 32)
	if err != nil || len(got) != len(want) {
		t.Fatalf("objects: got %v, %v; want %v", got, err, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("object: got %v, want %v", got[i], want[i])
		}
	}
	if o, err := nvrm.Lookup(f, c, c); err != nil || o.Parent != 0 || o.Class != nvgpu.NV01_ROOT_CLIENT {
		t.Errorf("the client itself: got %v, %v", o, err)
	}
	params := make([]byte, 16)
	binary.LittleEndian.PutUint32(params, uint32(c))
	if err := nvrm.Control(f, c, c, nvrmtest.GetHandleInfo, params); !errors.Is(err, nvrm.ErrInvalidArgument) {
		t.Errorf("handle information with index 0: got %v, want NV_ERR_INVALID_ARGUMENT", err)
	}
	id, err := nvrm.UUID(f, c, subdevice)
	if err != nil || !regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		t.Errorf("UUID: got %q, %v", id, err)
	}
}

func contractGroup(t *testing.T, g nvrm.Group) {
	if _, err := g.ID(); err != nil {
		t.Error(err)
	}
	if d, err := g.Timeslice(); err != nil || d <= 0 {
		t.Errorf("slice: got %v, %v; want more than zero", d, err)
	}
	for _, tt := range []struct{ set, want time.Duration }{
		{5 * time.Millisecond, 5 * time.Millisecond},
		{1500 * time.Nanosecond, time.Microsecond},
		{time.Microsecond, time.Microsecond},
		{time.Nanosecond, 0},
		{0, 0},
		{-time.Second, 0},
	} {
		if err := g.SetTimeslice(tt.set); err != nil {
			t.Errorf("set slice %v: %v", tt.set, err)
		}
		if got, err := g.Timeslice(); err != nil || got != tt.want {
			t.Errorf("slice after %v was set: got %v, %v; want %v", tt.set, got, err, tt.want)
		}
	}
}
