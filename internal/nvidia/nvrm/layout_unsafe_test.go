package nvrm

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// TestLayoutsMatchGVisor compares our sizes and offsets with gVisor's structs, which
// gVisor checks against the driver's headers.
func TestLayoutsMatchGVisor(t *testing.T) {
	var disable nvgpu.NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS
	var share nvgpu.NVOS57_PARAMETERS
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"NVOS00", SizeNVOS00, unsafe.Sizeof(nvgpu.NVOS00_PARAMETERS{})},
		{"NVOS21", SizeNVOS21, unsafe.Sizeof(nvgpu.NVOS21_PARAMETERS{})},
		{"NVOS33", uintptr(escMap.size), unsafe.Sizeof(nvgpu.IoctlNVOS33ParametersWithFD{})},
		{"NVOS34", uintptr(escUnmap.size), unsafe.Sizeof(nvgpu.NVOS34_PARAMETERS{})},
		{"NVOS54", uintptr(escControl.size), unsafe.Sizeof(nvgpu.NVOS54_PARAMETERS{})},
		{"NVOS57", uintptr(escShare.size), unsafe.Sizeof(nvgpu.NVOS57_PARAMETERS{})},
		{"share.action", shareAction, unsafe.Offsetof(share.SharePolicy) + unsafe.Offsetof(share.SharePolicy.Action)},
		{"share.status", uintptr(escShare.status), unsafe.Offsetof(share.Status)},
		{"NVOS64", uintptr(escAlloc.size), unsafe.Sizeof(nvgpu.NVOS64_PARAMETERS{})},
		{"disable", disableSize, unsafe.Sizeof(disable)},
		{"disable.numChannels", disableCount, unsafe.Offsetof(disable.NumChannels)},
		{"disable.hClientList", disableClientList, unsafe.Offsetof(disable.HClientList)},
		{"disable.hChannelList", disableChannelList, unsafe.Offsetof(disable.HChannelList)},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %d, want %d as in nvgpu", tt.name, tt.got, tt.want)
		}
	}
}

// wire is an Ioctler that keeps the last call of each kind and answers as it is told.
type wire struct {
	requests []uint32
	control  nvgpu.NVOS54_PARAMETERS
	alloc    nvgpu.NVOS64_PARAMETERS
	free     nvgpu.NVOS00_PARAMETERS
	mapped   nvgpu.IoctlNVOS33ParametersWithFD
	unmapped nvgpu.NVOS34_PARAMETERS
	params   []byte // of the last call
	answer   []byte // is written over the parameters
	handle   uint32
	status   uint32
	err      error
}

func (w *wire) Ioctl(request uint32, arg []byte) error {
	w.requests = append(w.requests, request)
	switch request & 0xff {
	case nvgpu.NV_ESC_RM_CONTROL:
		p := (*nvgpu.NVOS54_PARAMETERS)(unsafe.Pointer(&arg[0]))
		w.control = *p
		p.Status = w.status
		w.pass(uint64(p.Params), p.ParamsSize)
	case nvgpu.NV_ESC_RM_ALLOC:
		p := (*nvgpu.NVOS64_PARAMETERS)(unsafe.Pointer(&arg[0]))
		w.alloc = *p
		p.Status, p.HObjectNew.Val = w.status, w.handle
		w.pass(uint64(p.PAllocParms), p.ParamsSize)
	case nvgpu.NV_ESC_RM_FREE:
		p := (*nvgpu.NVOS00_PARAMETERS)(unsafe.Pointer(&arg[0]))
		w.free = *p
		p.Status = w.status
	case nvgpu.NV_ESC_RM_MAP_MEMORY:
		p := (*nvgpu.IoctlNVOS33ParametersWithFD)(unsafe.Pointer(&arg[0]))
		w.mapped = *p
		p.Params.Status, p.Params.PLinearAddress = w.status, 0x7777
	case nvgpu.NV_ESC_RM_UNMAP_MEMORY:
		p := (*nvgpu.NVOS34_PARAMETERS)(unsafe.Pointer(&arg[0]))
		w.unmapped = *p
		p.Status = w.status
	}
	return w.err
}

// pass keeps the parameters at an address and writes the answer there.
func (w *wire) pass(addr uint64, size uint32) {
	w.params = nil
	if size == 0 {
		return
	}
	there := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size)
	w.params = append(w.params, there...)
	copy(there, w.answer)
}

func as[T any](t *testing.T, b []byte) *T {
	t.Helper()
	if want := unsafe.Sizeof(*new(T)); uintptr(len(b)) != want {
		t.Fatalf("parameters: got %d bytes, want %d", len(b), want)
	}
	return (*T)(unsafe.Pointer(&b[0]))
}

// TestEscapeLayouts compares the bytes of each escape with gVisor's structs.
func TestEscapeLayouts(t *testing.T) {
	w := &wire{handle: 0x33}
	if h, err := Alloc(w, 0x11, 0x22, 0x30, 0xa06c, make([]byte, 20)); h != 0x33 || err != nil {
		t.Errorf("Alloc: got %v, %v; want 00000033", h, err)
	}
	if a := w.alloc; a.HRoot.Val != 0x11 || a.HObjectParent.Val != 0x22 || a.HObjectNew.Val != 0x30 || a.HClass != 0xa06c || a.ParamsSize != 20 || a.Flags != 0 || a.PRightsRequested != 0 {
		t.Errorf("alloc %+v", a)
	}
	if _, err := Alloc(w, 1, 2, 3, 4, nil); err != nil || w.alloc.PAllocParms != 0 || w.alloc.ParamsSize != 0 {
		t.Errorf("alloc without parameters: %+v, %v", w.alloc, err)
	}
	if err := Free(w, 0x11, 0x22, 0x33); err != nil || w.free.HRoot.Val != 0x11 || w.free.HObjectParent.Val != 0x22 || w.free.HObjectOld.Val != 0x33 {
		t.Errorf("free %+v, %v", w.free, err)
	}
	if err := Control(w, 0x11, 0x22, 0x3344, nil); err != nil {
		t.Error(err)
	}
	if c := w.control; c.HClient.Val != 0x11 || c.HObject.Val != 0x22 || c.Cmd != 0x3344 || c.Flags != 0 || c.Params != 0 || c.ParamsSize != 0 {
		t.Errorf("control %+v", c)
	}
	want := []uint32{0xc030462b, 0xc030462b, 0xc0104629, 0xc020462a}
	for i, r := range want {
		if w.requests[i] != r {
			t.Errorf("request %d: got %08x, want %08x", i, w.requests[i], r)
		}
	}
}

func TestMappingLayouts(t *testing.T) {
	w := &wire{}
	if linear, err := MapMemory(w, 0x11, 0x22, 0x33, 4096, 9); linear != 0x7777 || err != nil {
		t.Errorf("MapMemory: got %x, %v; want 7777", linear, err)
	}
	if m := w.mapped; m.Params.HClient.Val != 0x11 || m.Params.HDevice.Val != 0x22 || m.Params.HMemory.Val != 0x33 ||
		m.Params.Offset != 0 || m.Params.Length != 4096 || m.Params.Flags != mapReadOnly || m.FD != 9 {
		t.Errorf("map %+v", m)
	}
	if err := UnmapMemory(w, 0x11, 0x22, 0x33, 0x7777); err != nil {
		t.Error(err)
	}
	if u := w.unmapped; u.HClient.Val != 0x11 || u.HDevice.Val != 0x22 || u.HMemory.Val != 0x33 || u.PLinearAddress != 0x7777 || u.Flags != 0 {
		t.Errorf("unmap %+v", u)
	}
	w.status = uint32(ErrNotSupported)
	_, err := MapMemory(w, 1, 2, 3, 4, 5)
	for _, err := range []error{err, UnmapMemory(w, 1, 2, 3, 4)} {
		if !errors.Is(err, ErrNotSupported) {
			t.Errorf("got %v, want NV_ERR_NOT_SUPPORTED", err)
		}
	}
}

func TestDisableChannelsLayout(t *testing.T) {
	w := &wire{}
	if err := DisableChannels(w, 0xc1, 0x53, []Handle{0x1c, 0x22}, true); err != nil {
		t.Fatal(err)
	}
	p := as[nvgpu.NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS](t, w.params)
	if w.control.HObject.Val != 0x53 || w.control.Cmd != nvgpu.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
		t.Errorf("control %+v", w.control)
	}
	if p.BDisable != 1 || p.NumChannels != 2 || p.BOnlyDisableScheduling != 0 || p.BRewindGpPut != 0 || p.PRunlistPreemptEvent != 0 {
		t.Errorf("parameters %+v", p)
	}
	if p.HClientList[0].Val != 0xc1 || p.HClientList[1].Val != 0xc1 || p.HClientList[2].Val != 0 {
		t.Errorf("clients %v", p.HClientList[:3])
	}
	if p.HChannelList[0].Val != 0x1c || p.HChannelList[1].Val != 0x22 || p.HChannelList[2].Val != 0 {
		t.Errorf("channels %v", p.HChannelList[:3])
	}
	if err := DisableChannels(w, 0xc1, 0x53, []Handle{0x1c}, false); err != nil {
		t.Fatal(err)
	}
	if p := as[nvgpu.NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS](t, w.params); p.BDisable != 0 {
		t.Errorf("parameters %+v", p)
	}
}

// TestControlLayouts checks the parameters that nvgpu has no structs for against the
// driver's headers.
func TestControlLayouts(t *testing.T) {
	w := &wire{}
	g := Group{File: w, Client: 0xc1, Handle: 0x15}

	w.answer = []byte{7, 0, 0, 0}
	if id, err := g.ID(); id != 7 || err != nil || w.control.Cmd != 0xa06c0106 || len(w.params) != 4 {
		t.Errorf("ID: got %d, %v, want 7; %+v", id, err, w.control)
	}
	w.answer = []byte{0, 8, 0, 0, 0, 0, 0, 0}
	if d, err := g.Timeslice(); d != 2048*time.Microsecond || err != nil || w.control.Cmd != 0xa06c0104 {
		t.Errorf("Timeslice: got %v, %v, want 2.048ms; %+v", d, err, w.control)
	}
	w.answer = []byte{0, 0, 0, 0, 1, 0, 0, 0}
	if d, err := g.Timeslice(); err == nil {
		t.Errorf("a slice of 2^32 us: got %v, want an error", d)
	}
	w.answer = nil
	if err := g.SetTimeslice(3 * time.Millisecond); err != nil || *as[uint64](t, w.params) != 3000 || w.control.Cmd != 0xa06c0103 {
		t.Errorf("SetTimeslice: got %x, %v; %+v", w.params, err, w.control)
	}
	type handleInfo struct {
		object, index uint32
		_             uint64
	}
	if _, err := Lookup(w, 0xc1, 0x15); err != nil || w.control.Cmd != 0xd02 || w.control.HObject.Val != 0xc1 {
		t.Errorf("Lookup: got %v; %+v", err, w.control)
	}
	if p := as[handleInfo](t, w.params); p.object != 0x15 || p.index != 1 {
		t.Errorf("handle info %+v", p)
	}
	type gidInfo struct {
		_, flags, _ uint32
		_           [256]byte
	}
	_, err := UUID(w, 0xc1, 0x53)
	if p := as[gidInfo](t, w.params); err == nil || p.flags != 2 || w.control.Cmd != 0x2080014a {
		t.Errorf("UUID: got %+v, %v; want an error for an identity of zero bytes", p, err)
	}
}
