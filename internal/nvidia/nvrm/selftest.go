package nvrm

import (
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Handles of the self-test's own objects, and one that it does not use.
const (
	testDevice    Handle = 0x5c000002
	testSubdevice Handle = 0x5c000003
	testGroup     Handle = 0x5c000015
	testNone      Handle = 0x5c0003ff
)

const maxDevices = 32 // NV_MAX_DEVICES, from nvlimits.h

// SelfTest checks that the driver understands the calls of this package in the way
// that the drivers of the table do. f is a control file of our own, and the device
// file of a GPU must be open as well.
//
// The test makes a client with a channel group of its own, which has no channels and
// runs nothing, and frees it again. It touches nothing of other processes. It reads the
// group's slice, writes the same value back, writes another, and makes calls that are
// wrong on purpose and must be refused with a certain status: a driver whose layouts
// differ refuses them with another one, or not at all.
func SelfTest(f Ioctler) (err error) {
	client, err := NewClient(f)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer func() {
		if freed := Free(f, client, 0, client); freed != nil {
			err = errors.Join(err, fmt.Errorf("free the client: %w", freed))
		}
	}()
	t := selfTest{f, client}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"owner of the client", t.owner},
		{"make a channel group", t.makeGroup},
		{"look up objects", t.lookUp},
		{"set the slice", t.slice},
		{"wrong calls", t.wrongCalls},
	} {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

type selfTest struct {
	f      Ioctler
	client Handle
}

func (t selfTest) group() Group { return Group{File: t.f, Client: t.client, Handle: testGroup} }

func (t selfTest) owner() error {
	o, err := OwnerOf(t.f, t.client)
	if err == nil && o != ThisFile {
		err = fmt.Errorf("got %v, want %v", o, ThisFile)
	}
	return err
}

// makeGroup makes a device, of the first GPU that the driver has for us, a subdevice
// and a group. Parameters have room behind them, in case a driver reads more.
func (t selfTest) makeGroup() error {
	params := func(size int) []byte { return make([]byte, size, 256) }
	var err error
	for i := range uint32(maxDevices) {
		device := params(56) // NV0080_ALLOC_PARAMETERS: deviceId 0
		le.PutUint32(device, i)
		if _, err = Alloc(t.f, t.client, t.client, testDevice, ClassDevice, device); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if _, err := Alloc(t.f, t.client, testDevice, testSubdevice, ClassSubdevice, params(4)); err != nil {
		return err
	}
	group := params(20)         // NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: engineType 12
	le.PutUint32(group[12:], 1) // NV2080_ENGINE_TYPE_GRAPHICS
	_, err = Alloc(t.f, t.client, testDevice, testGroup, ClassChannelGroup, group)
	return err
}

func (t selfTest) lookUp() error {
	for _, want := range []Object{
		{testDevice, t.client, ClassDevice},
		{testSubdevice, testDevice, ClassSubdevice},
		{testGroup, testDevice, ClassChannelGroup},
	} {
		got, err := Lookup(t.f, t.client, want.Handle)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
	}
	if _, err := UUID(t.f, t.client, testSubdevice); err != nil {
		return err
	}
	_, err := t.group().ID()
	return err
}

func (t selfTest) slice() error {
	g := t.group()
	found, err := g.Timeslice()
	if err != nil {
		return err
	}
	if found <= 0 || found > MaxTimeslice {
		return fmt.Errorf("a new group has a slice of %v", found)
	}
	for _, want := range []time.Duration{found, 5 * time.Millisecond, found} {
		if err := g.SetTimeslice(want); err != nil {
			return err
		}
		if got, err := g.Timeslice(); err != nil || got != want {
			return errors.Join(fmt.Errorf("got %v, want %v", got, want), err)
		}
	}
	return nil
}

// wrongCalls makes calls that must be refused. A driver in which DISABLE_CHANNELS has
// another size refuses a list of unknown channels for its size.
func (t selfTest) wrongCalls() error {
	for _, tt := range []struct {
		name string
		err  error
		want Status
	}{
		{
			"a slice of 4 bytes", Control(t.f, t.client, testGroup, nvgpu.NVA06C_CTRL_CMD_GET_TIMESLICE, make([]byte, 4)),
			ErrInvalidArgument,
		},
		{"an unknown object", Control(t.f, t.client, testNone, cmdGetInfo, make([]byte, 4)), ErrObjectNotFound},
		{"an unknown channel", DisableChannels(t.f, t.client, testSubdevice, []Handle{testNone}, true), ErrInvalidChannel},
		{
			"no channels", Control(t.f, t.client, testSubdevice, nvgpu.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, make([]byte, disableSize)),
			ErrInvalidParamStruct,
		},
	} {
		if !errors.Is(tt.err, tt.want) {
			return fmt.Errorf("%s: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
	return nil
}
