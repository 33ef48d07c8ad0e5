package nvtrace

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// control is an open /dev/nvidiactl: a *nvrm.File, or a test's.
type control interface {
	nvrm.Ioctler
	Fd() int
	Close() error
}

// retrying is a control file that repeats a call for up to 100 ms while the driver answers
// EAGAIN. The daemon's loop waits for it, and must return before the leases of gates end.
type retrying struct{ control }

func (p retrying) Ioctl(request uint32, arg []byte) error {
	err := p.control.Ioctl(request, arg)
	for range 100 {
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
		time.Sleep(time.Millisecond)
		err = p.control.Ioctl(request, arg)
	}
	return err
}

// client is an RM client of our own with objects for one GPU.
type client struct {
	open      func() (control, error)
	node      *os.File // the GPU's device file, open so that the GPU stays initialised
	file      control
	handle    nvrm.Handle
	device    nvrm.Handle
	subdevice nvrm.Handle
}

// newClient opens the files and makes the client, its device and its subdevice.
func newClient(cfg Config, open func() (control, error)) (*client, error) {
	c := &client{open: open}
	if err := c.make(cfg); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *client) make(cfg Config) error {
	file, err := c.open()
	if err != nil {
		return err
	}
	c.file = retrying{file}
	if c.node, err = nvrm.OpenGPU(cfg.DevicePattern, cfg.Index); err != nil {
		return err
	}
	if c.handle, err = nvrm.NewClient(c.file); err != nil {
		return err
	}
	gpus := c.listGPUs(cfg.Index)
	for _, in := range gpus {
		if err = c.attach(in); err != nil {
			continue
		}
		if cfg.UUID == "" {
			return nil
		}
		uuid, err := nvrm.UUID(c.file, c.handle, c.subdevice)
		if err == nil && uuid == cfg.UUID {
			return nil
		}
		if err := c.detach(); err != nil {
			return err
		}
	}
	return errors.Join(fmt.Errorf("no GPU %s among the %d of the driver", cfg.UUID, len(gpus)), err)
}

// gpuInstance is the number of a GPU in RM.
type gpuInstance struct{ device, sub uint32 }

// listGPUs returns the GPUs in the driver's order. If the driver does not list them, the
// number of the device file is taken for the number of the GPU.
func (c *client) listGPUs(index int) []gpuInstance {
	guess := []gpuInstance{{device: uint32(max(index, 0))}}
	ids := make([]byte, 4*attachedIDs)
	for i := range ids {
		ids[i] = 0xff
	}
	if c.control(c.handle, nvgpu.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, ids) != nil {
		return guess
	}
	var all []gpuInstance
	for i := range attachedIDs {
		id := le.Uint32(ids[4*i:])
		if id == noID {
			break
		}
		info := make([]byte, sizeIDInfo)
		le.PutUint32(info[idInfoGPU:], id)
		if c.control(c.handle, nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info) == nil {
			all = append(all, gpuInstance{device: le.Uint32(info[idInfoDevice:]), sub: le.Uint32(info[idInfoSub:])})
		}
	}
	if len(all) == 0 {
		return guess
	}
	return all
}

func (c *client) attach(in gpuInstance) error {
	params := make([]byte, sizeDevice)
	le.PutUint32(params, in.device)
	device, err := c.alloc(c.handle, handleDevice, nvrm.ClassDevice, params)
	if err != nil {
		return err
	}
	c.device = device
	params = make([]byte, sizeSubdevice)
	le.PutUint32(params, in.sub)
	c.subdevice, err = c.alloc(c.device, handleSubdevice, nvrm.ClassSubdevice, params)
	if err != nil {
		return errors.Join(err, c.detach())
	}
	return nil
}

// detach frees the device, and the subdevice with it.
func (c *client) detach() error {
	device := c.device
	c.device, c.subdevice = 0, 0
	return nvrm.Free(c.file, c.handle, c.handle, device)
}

func (c *client) alloc(parent, handle nvrm.Handle, class uint32, params []byte) (nvrm.Handle, error) {
	return nvrm.Alloc(c.file, c.handle, parent, handle, class, params)
}

func (c *client) control(object nvrm.Handle, cmd uint32, params []byte) error {
	return nvrm.Control(c.file, c.handle, object, cmd, params)
}

// clock returns the GPU's time.
func (c *client) clock() (int64, error) {
	params := make([]byte, 8)
	if err := c.control(c.subdevice, cmdClock, params); err != nil {
		return 0, fmt.Errorf("read GPU clock: %w", err)
	}
	ns := le.Uint64(params)
	if ns == 0 || ns > maxTime {
		return 0, fmt.Errorf("read GPU clock: got %d ns", ns)
	}
	return int64(ns), nil
}

// close frees the client with all its objects and closes the files. A second call does
// nothing.
func (c *client) close() error {
	var errs []error
	if c.handle != 0 {
		errs = append(errs, nvrm.Free(c.file, c.handle, 0, c.handle))
	}
	if c.node != nil {
		errs = append(errs, c.node.Close())
	}
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	*c = client{open: c.open}
	return errors.Join(errs...)
}
