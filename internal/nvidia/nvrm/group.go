package nvrm

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// cmdGetInfo is a control of a channel group that nvgpu does not name: {u32 tsgID}.
// From ctrl/ctrla06c.h.
const cmdGetInfo = 0xa06c0106

// Group is a channel group (TSG): what the hardware's runlist is a list of.
type Group struct {
	File   Ioctler
	Client Handle
	Handle Handle
}

// ID returns the group's number on its runlist. It changes nothing, which makes
// it the call to try first.
func (g Group) ID() (uint32, error) {
	params := make([]byte, 4) // NVA06C_CTRL_GET_INFO_PARAMS
	err := Control(g.File, g.Client, g.Handle, cmdGetInfo, params)
	return le.Uint32(params), err
}

// Timeslice returns the group's time slice. It does not ask the firmware.
func (g Group) Timeslice() (time.Duration, error) {
	params := make([]byte, 8) // NVA06C_CTRL_TIMESLICE_PARAMS: timesliceUs
	err := Control(g.File, g.Client, g.Handle, nvgpu.NVA06C_CTRL_CMD_GET_TIMESLICE, params)
	us := le.Uint64(params)
	if err == nil && us > uint64(time.Hour/time.Microsecond) {
		return 0, fmt.Errorf("group %v: a time slice of %d us", g.Handle, us)
	}
	return time.Duration(us) * time.Microsecond, err
}

// SetTimeslice sets it, for good. Less than a microsecond is the least there is.
func (g Group) SetTimeslice(d time.Duration) error {
	params := make([]byte, 8)
	le.PutUint64(params, uint64(max(d, 0).Microseconds()))
	return Control(g.File, g.Client, g.Handle, nvgpu.NVA06C_CTRL_CMD_SET_TIMESLICE, params)
}

// Preempt has the group leave the GPU once. It comes straight back when nobody
// else is ready, so this is no way to stop it.
func (g Group) Preempt(wait bool) error {
	params := make([]byte, 8) // NVA06C_CTRL_PREEMPT_PARAMS: bWait 0, bManualTimeout 1, timeoutUs 4
	if wait {
		params[0] = 1
	}
	return Control(g.File, g.Client, g.Handle, nvgpu.NVA06C_CTRL_CMD_PREEMPT, params)
}

// MaxChannels is how many channels one call disables.
const MaxChannels = nvgpu.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES

// Layout of NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, from ctrl2080fifo.h.
const (
	disableSize       = 536
	disableCount      = 4
	disableOnlySched  = 8
	disableClientList = 24
	disableChanList   = 280
)

// DisableChannels stops, or starts again, channels of a client through one of
// its subdevices: what runs of them leaves the GPU and stays off. With onlySched
// the channels are only taken from the schedule.
func DisableChannels(f Ioctler, client, subdevice Handle, channels []Handle, disable, onlySched bool) error {
	if len(channels) == 0 || len(channels) > MaxChannels {
		return fmt.Errorf("disable %d channels: one call takes 1 to %d", len(channels), MaxChannels)
	}
	params := make([]byte, disableSize)
	if disable {
		params[0] = 1
	}
	le.PutUint32(params[disableCount:], uint32(len(channels)))
	if onlySched {
		params[disableOnlySched] = 1
	}
	for i, c := range channels {
		le.PutUint32(params[disableClientList+4*i:], uint32(client))
		le.PutUint32(params[disableChanList+4*i:], uint32(c))
	}
	return Control(f, client, subdevice, nvgpu.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
}
