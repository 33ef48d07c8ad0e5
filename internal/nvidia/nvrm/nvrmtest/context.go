package nvrmtest

import (
	"fmt"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Context holds the RM objects of a CUDA context.
type Context struct {
	Client    nvrm.Handle
	Device    nvrm.Handle
	Subdevice nvrm.Handle
	Compute   Channels
	Copies    []Channels
}

// Channels is a channel group with its channels.
type Channels struct {
	Group    nvrm.Handle
	Engine   uint32
	Channels []nvrm.Handle
}

// The handles of CUDA's objects on an H200. They were the same in every run.
const (
	handleDevice    nvrm.Handle = 0x5c000002
	handleSubdevice nvrm.Handle = 0x5c000003
)

var (
	cudaCompute = Channels{0x5c000015, engineGraphics, []nvrm.Handle{
		0x5c00001c, 0x5c000022, 0x5c000026, 0x5c00002a, 0x5c00002e, 0x5c000032, 0x5c000036, 0x5c00003a,
	}}
	cudaCopies = []Channels{
		{0x5c00003e, 0xb, []nvrm.Handle{0x5c000040, 0x5c000043, 0x5c000046, 0x5c000049}},
		{0x5c00004c, 0xc, []nvrm.Handle{0x5c00004e, 0x5c000051, 0x5c000054, 0x5c000057}},
		{0x5c00005a, 0xd, []nvrm.Handle{0x5c00005c, 0x5c00005f, 0x5c000062, 0x5c000065}},
	}
)

// NewContext makes the objects of a CUDA context on an H200 through f, with the calls
// that CUDA makes:
//
//	c1d000NN client
//	└ 5c000002 device
//	  ├ 5c000003 subdevice
//	  ├ 5c000015 compute group ─ 8 channels ─ 1 compute object each
//	  └ 5c00003e, 4c, 5a copy groups ─ 4 channels ─ 1 copy object each
func NewContext(f nvrm.Ioctler) (Context, error) {
	c := Context{Device: handleDevice, Subdevice: handleSubdevice, Compute: cudaCompute, Copies: cudaCopies}
	var err error
	if c.Client, err = nvrm.Alloc(f, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil); err != nil {
		return c, err
	}
	make := func(parent, handle nvrm.Handle, class uint32, params []byte) {
		if err == nil {
			_, err = nvrm.Alloc(f, c.Client, parent, handle, class, params)
		}
	}
	make(c.Client, c.Device, nvgpu.NV01_DEVICE_0, nil)
	make(c.Device, c.Subdevice, nvgpu.NV20_SUBDEVICE_0, nil)
	if err == nil {
		err = c.makeGroup(f, c.Compute, nvgpu.HOPPER_COMPUTE_A)
	}
	for _, g := range c.Copies {
		if err == nil {
			err = c.makeGroup(f, g, nvgpu.HOPPER_DMA_COPY_A)
		}
	}
	if err != nil {
		return c, fmt.Errorf("make context: %w", err)
	}
	return c, nil
}

// makeGroup makes a group whose channels have an engine object of a class each.
func (c Context) makeGroup(f nvrm.Ioctler, g Channels, engine uint32) error {
	_, err := nvrm.Alloc(f, c.Client, c.Device, g.Group, nvgpu.KEPLER_CHANNEL_GROUP_A, groupParams(g.Engine))
	for _, ch := range g.Channels {
		if err == nil {
			_, err = nvrm.Alloc(f, c.Client, g.Group, ch, nvgpu.HOPPER_CHANNEL_GPFIFO_A, nil)
		}
		if err == nil {
			_, err = nvrm.Alloc(f, c.Client, ch, ch+1, engine, nil)
		}
	}
	return err
}

// MoreGroups makes n more compute groups, each with one channel.
func (c Context) MoreGroups(f nvrm.Ioctler, n int) error {
	var err error
	for i := 0; i < n && err == nil; i++ {
		h := handleDevice + nvrm.Handle(0x100+4*i)
		err = c.makeGroup(f, Channels{h, engineGraphics, []nvrm.Handle{h + 1}}, nvgpu.HOPPER_COMPUTE_A)
	}
	return err
}

// Remake frees the compute group and makes it again with the same handles, as cudaDeviceReset
// and the next use of CUDA do.
func (c Context) Remake(f nvrm.Ioctler) error {
	if err := nvrm.Free(f, c.Client, c.Device, c.Compute.Group); err != nil {
		return err
	}
	return c.makeGroup(f, c.Compute, nvgpu.HOPPER_COMPUTE_A)
}

// groupParams returns NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS for an engine.
func groupParams(engine uint32) []byte {
	params := make([]byte, 20)
	le.PutUint32(params[12:], engine)
	return params
}
