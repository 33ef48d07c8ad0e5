package nvtrace

import (
	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// control answers the controls of a trace.
func (f *fakeFile) control(arg []byte) error {
	rm, object, cmd := f.rm, nvrm.Handle(le.Uint32(arg[4:])), le.Uint32(arg[8:])
	params := paramsAt(le.Uint64(arg[16:]), le.Uint32(arg[24:]))
	if err := rm.step("control %08x", cmd); err != nil {
		if cmd == 0x20801238 {
			le.PutUint32(params[20:], rm.reason)
		}
		return err
	}
	o := rm.objects[object]
	if nvrm.Handle(le.Uint32(arg[0:])) != rm.client || f != rm.maker || o == nil {
		return nvrm.ErrInvalidClient
	}
	want := map[uint32]struct {
		class uint32
		size  int
	}{
		0x201:      {nvgpu.NV01_ROOT_CLIENT, 128},
		0x205:      {nvgpu.NV01_ROOT_CLIENT, 32},
		0x20800403: {nvgpu.NV20_SUBDEVICE_0, 8},
		0x2080014a: {nvgpu.NV20_SUBDEVICE_0, 268},
		0x20801238: {nvgpu.NV20_SUBDEVICE_0, 24},
		0x20801231: {nvgpu.NV20_SUBDEVICE_0, 20},
		0x2080018e: {nvgpu.NV20_SUBDEVICE_0, 8 + 200*72},
		0x90cd0101: {nvgpu.NV_EVENT_BUFFER, 8},
		0x90cd0102: {nvgpu.NV_EVENT_BUFFER, 8},
		0x90cd0104: {nvgpu.NV_EVENT_BUFFER, 0},
	}[cmd]
	if want.class != o.class || want.size != len(params) {
		rm.t.Errorf("control %08x of %d bytes on class %04x", cmd, len(params), o.class)
		return nvrm.ErrInvalidCommand
	}
	switch cmd {
	case 0x201:
		for i, g := range rm.gpus {
			le.PutUint32(params[4*i:], 0x100*(g+1))
		}
	case 0x205:
		le.PutUint32(params[8:], le.Uint32(params)/0x100-1)
	case 0x2080014a: // the last byte of the UUID is the instance
		le.PutUint32(params[8:], 16)
		params[27] = byte(rm.device)
	case 0x2080018e:
		rm.pidInfo(params)
	case 0x20800403:
		le.PutUint64(params, uint64(rm.now))
	case 0x20801238, 0x20801231:
		if rm.objects[nvrm.Handle(le.Uint32(params))] == nil || le.Uint32(params[4:]) != 32 || le.Uint32(params[8:]) != 0 || le.Uint32(params[12:]) != 0xffffffff {
			rm.t.Errorf("bind with %x", params)
		}
		rm.ring.bound = true
	case 0x90cd0101:
		if want := uint32(params[0]); want > 1 || le.Uint32(params[4:]) != want {
			rm.t.Errorf("enable with %x", params)
		}
		rm.ring.enabled = params[0] == 1
	case 0x90cd0102:
		rm.ring.get = le.Uint32(params)
		le.PutUint32(rm.ring.header.bytes, rm.ring.get)
		le.PutUint64(rm.ring.header.bytes[16:], 0)
	case 0x90cd0104:
		rm.timer()
	}
	return nil
}

// pidInfo answers about memory: process p has p MiB of its own and p KiB that it shares. RM knows no
// process above 1000.
func (rm *fakeRM) pidInfo(params []byte) {
	n := le.Uint32(params)
	if n == 0 || n > 200 {
		rm.t.Errorf("asked about %d processes at once", n)
		return
	}
	for i := range n {
		entry := params[8+72*i:][:72]
		pid := le.Uint32(entry)
		if index := le.Uint32(entry[4:]); index != 0 {
			rm.t.Errorf("process %d: index %d, want 0, which is memory", pid, index)
		}
		if pid > 1000 {
			le.PutUint32(entry[8:], uint32(nvrm.ErrObjectNotFound))
			le.PutUint64(entry[16:], 7) // must not be read
			continue
		}
		le.PutUint64(entry[16:], uint64(pid)<<20)
		le.PutUint64(entry[24:], uint64(pid)<<10)
		le.PutUint64(entry[32:], 9) // memory of others
	}
}

// switches adds a switch to the hardware's log.
func (rm *fakeRM) switches(tag byte, pid uint32, at int64) {
	r := make([]byte, 32)
	le.PutUint16(r, 2)
	r[8] = tag
	le.PutUint16(r[10:], rm.seq)
	le.PutUint32(r[12:], 0x1000+pid)
	le.PutUint32(r[16:], pid)
	le.PutUint64(r[24:], uint64(at))
	rm.seq++
	rm.hardware = append(rm.hardware, r)
}

// timer moves the hardware's log to the event buffer, as the driver's timer and the flush
// do.
func (rm *fakeRM) timer() {
	ring := &rm.ring
	if !ring.bound || !ring.enabled {
		rm.hardware = nil
	}
	for _, r := range rm.hardware {
		next := (ring.put + 1) % ring.count
		if next == ring.get {
			drops := ring.header.bytes[16:]
			le.PutUint64(drops, le.Uint64(drops)+1)
			continue
		}
		copy(ring.records.bytes[32*ring.put:], r)
		ring.put = next
	}
	rm.hardware = nil
	if ring.bound {
		le.PutUint32(ring.header.bytes[4:], ring.put)
	}
}
