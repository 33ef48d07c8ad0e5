package nvrmtest

import (
	"github.com/giveway/giveway/internal/fusedev"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Controls that the double knows, from ctrl0000client.h, ctrl2080gpu.h, ctrl2080fifo.h and ctrla06c.h.
const (
	GetHandleInfo   = 0xd02
	GetGIDInfo      = nvgpu.NV2080_CTRL_CMD_GPU_GET_GID_INFO
	DisableChannels = nvgpu.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS
	SetTimeslice    = nvgpu.NVA06C_CTRL_CMD_SET_TIMESLICE
	GetTimeslice    = nvgpu.NVA06C_CTRL_CMD_GET_TIMESLICE
	GetInfo         = 0xa06c0106
)

// control is one control that RM implements.
type control struct {
	on   func(class uint32) bool
	size uint32
	do   func(*RM, *client, *object, []byte) nvrm.Status
}

func isGroup(class uint32) bool     { return class == nvrm.ClassChannelGroup }
func isSubdevice(class uint32) bool { return class == nvrm.ClassSubdevice }

var controls = map[uint32]control{
	GetHandleInfo:   {isRoot, 16, getHandleInfo},
	GetGIDInfo:      {isSubdevice, 268, getGIDInfo},
	DisableChannels: {isSubdevice, 536, disableChannels},
	SetTimeslice:    {isGroup, 8, setTimeslice},
	GetTimeslice:    {isGroup, 8, getTimeslice},
	GetInfo:         {isGroup, 4, getInfo},
}

// control implements NV_ESC_RM_CONTROL. It checks in the order of _rmapiRmControl and
// resControlLookup_IMPL.
func (f *openFile) control(mem fusedev.Memory, arg []byte) nvrm.Status {
	cmd, params, size := le.Uint32(arg[8:]), le.Uint64(arg[16:]), le.Uint32(arg[24:])
	client := nvrm.Handle(le.Uint32(arg[0:]))
	if f.rm.clients[client] == nil {
		f.rm.logged++
	}
	c, status := f.client(client, nvrm.ErrInvalidClient)
	if status != nvrm.OK {
		return status
	}
	k, known := controls[cmd]
	if (params == 0) != (size == 0) || known && size != k.size {
		return nvrm.ErrInvalidArgument
	}
	o := c.objects[nvrm.Handle(le.Uint32(arg[4:]))]
	if o == nil {
		return nvrm.ErrObjectNotFound
	}
	if !known || !k.on(o.class) {
		return nvrm.ErrNotSupported
	}
	buf := make([]byte, size)
	if err := mem.Read(params, buf); err != nil {
		return errInvalidAddress
	}
	if status := k.do(f.rm, c, o, buf); status != nvrm.OK {
		return status
	}
	if err := mem.Write(params, buf); err != nil {
		return errInvalidAddress
	}
	return nvrm.OK
}

// getHandleInfo takes {u32 hObject, u32 index, u64 result}. Index 1 is the parent, 2 the
// class.
func getHandleInfo(_ *RM, c *client, _ *object, p []byte) nvrm.Status {
	o := c.objects[nvrm.Handle(le.Uint32(p[0:]))]
	if o == nil {
		return nvrm.ErrObjectNotFound
	}
	switch le.Uint32(p[4:]) {
	case 1:
		var parent nvrm.Handle
		if o.parent != nil {
			parent = o.parent.handle
		}
		le.PutUint32(p[8:], uint32(parent))
	case 2:
		le.PutUint32(p[8:], o.class)
	default:
		return nvrm.ErrInvalidArgument
	}
	return nvrm.OK
}

// getGIDInfo takes {u32 index, u32 flags, u32 length, u8 data[256]}. Flags 2 requests the
// binary form. The double has no other.
func getGIDInfo(rm *RM, _ *client, _ *object, p []byte) nvrm.Status {
	if le.Uint32(p[4:]) != 2 {
		return nvrm.ErrNotSupported
	}
	le.PutUint32(p[8:], uint32(copy(p[12:], rm.cfg.UUID[:])))
	return nvrm.OK
}

func getInfo(_ *RM, _ *client, o *object, p []byte) nvrm.Status {
	le.PutUint32(p, uint32(o.group.id))
	return nvrm.OK
}

func getTimeslice(_ *RM, _ *client, o *object, p []byte) nvrm.Status {
	le.PutUint64(p, o.group.slice)
	return nvrm.OK
}

func setTimeslice(rm *RM, _ *client, o *object, p []byte) nvrm.Status {
	rm.setSlice(o.group, le.Uint64(p))
	return nvrm.OK
}

// disableChannels changes all channels of the list, or none if one is wrong: bDisable 0,
// numChannels 4, bOnlyDisableScheduling 8, bRewindGpPut 9, pRunlistPreemptEvent 16,
// hClientList[64] 24, hChannelList[64] 280.
//
// Two effects of the real driver are unknown and not modelled: when a channel stops that
// only leaves the schedule, and what the handle of a group in the list does, which the
// driver accepts.
func disableChannels(rm *RM, c *client, _ *object, p []byte) nvrm.Status {
	n := le.Uint32(p[4:])
	if le.Uint64(p[16:]) != 0 {
		return nvrm.ErrInsufficientPermissions // only the kernel's clients may pass an event
	}
	if n == 0 || n > 64 {
		return nvrm.ErrInvalidParamStruct
	}
	var channels []*object
	for i := range n {
		ch := c.objects[nvrm.Handle(le.Uint32(p[280+4*i:]))]
		switch {
		case nvrm.Handle(le.Uint32(p[24+4*i:])) != c.handle || ch == nil:
			return nvrm.ErrInvalidChannel
		case nvrm.IsChannel(ch.class):
			channels = append(channels, ch)
		case !isGroup(ch.class):
			return nvrm.ErrInvalidChannel
		}
	}
	disable, onlySched := p[0] != 0, p[8] != 0
	for _, ch := range channels {
		ch.disabled = disable && !onlySched
		rm.updateGroup(ch.parent)
	}
	return nvrm.OK
}
