package nvrm

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// cmdGetInfo is NVA06C_CTRL_CMD_GET_INFO, which nvgpu does not define: {u32 tsgID}.
// From ctrl/ctrla06c.h.
const cmdGetInfo = 0xa06c0106

// MaxTimeslice is the longest slice that is believed.
const MaxTimeslice = 10 * time.Second

// Group is a channel group (TSG), an entry of the hardware's runlist.
type Group struct {
	File   Ioctler
	Client Handle
	Handle Handle
}

// ID returns the number of the group on its runlist.
func (g Group) ID() (uint32, error) {
	params := make([]byte, 4) // NVA06C_CTRL_GET_INFO_PARAMS
	err := Control(g.File, g.Client, g.Handle, cmdGetInfo, params)
	return le.Uint32(params), err
}

// Timeslice returns the time slice of the group. RM answers without the firmware.
func (g Group) Timeslice() (time.Duration, error) {
	params := make([]byte, 8) // NVA06C_CTRL_TIMESLICE_PARAMS: timesliceUs
	err := Control(g.File, g.Client, g.Handle, nvgpu.NVA06C_CTRL_CMD_GET_TIMESLICE, params)
	us := le.Uint64(params)
	if err == nil && us > uint64(MaxTimeslice/time.Microsecond) {
		return 0, fmt.Errorf("group %v has a time slice of %d us, which cannot be", g.Handle, us)
	}
	return time.Duration(us) * time.Microsecond, err
}

// SetTimeslice sets the time slice, in whole microseconds. The hardware treats zero as
// one microsecond, its shortest slice.
func (g Group) SetTimeslice(d time.Duration) error {
	params := make([]byte, 8)
	le.PutUint64(params, uint64(max(d, 0).Microseconds()))
	return Control(g.File, g.Client, g.Handle, nvgpu.NVA06C_CTRL_CMD_SET_TIMESLICE, params)
}

// MaxChannels is how many channels one DisableChannels call takes.
const MaxChannels = nvgpu.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES

// Layout of NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, from ctrl2080fifo.h.
const (
	disableSize        = 536
	disableCount       = 4
	disableClientList  = 24
	disableChannelList = 280
)

// DisableChannels disables or enables channels of a client, through one of its
// subdevices. A disabled channel leaves the GPU, its running kernel included, until it
// is enabled.
func DisableChannels(f Ioctler, client, subdevice Handle, channels []Handle, disable bool) error {
	if len(channels) == 0 || len(channels) > MaxChannels {
		return fmt.Errorf("disable %d channels: one call takes 1 to %d", len(channels), MaxChannels)
	}
	params := make([]byte, disableSize)
	if disable {
		params[0] = 1
	}
	le.PutUint32(params[disableCount:], uint32(len(channels)))
	for i, c := range channels {
		le.PutUint32(params[disableClientList+4*i:], uint32(client))
		le.PutUint32(params[disableChannelList+4*i:], uint32(c))
	}
	return Control(f, client, subdevice, nvgpu.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
}
