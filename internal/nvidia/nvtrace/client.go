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

// patient is a control file that asks again when the driver says EAGAIN, for a
// second.
type patient struct{ control }

func (p patient) Ioctl(request uint32, arg []byte) error {
	err := p.control.Ioctl(request, arg)
	for range 1000 {
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
		time.Sleep(time.Millisecond)
		err = p.control.Ioctl(request, arg)
	}
	return err
}

// client is an RM client of our own with one GPU in it.
type client struct {
	open      func() (control, error)
	node      *os.File // the GPU's own file: while it is open the GPU stays initialised
	file      control
	handle    nvrm.Handle
	device    nvrm.Handle
	subdevice nvrm.Handle
}

// newClient opens the files and makes client, device and subdevice.
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
	c.file = patient{file}
	if c.node, err = openNode(cfg); err != nil {
		return err
	}
	if c.handle, err = nvrm.Alloc(c.file, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil); err != nil {
		return err
	}
	candidates := c.candidates(cfg)
	for _, in := range candidates {
		if err = c.attach(in); err != nil {
			if cfg.UUID == "" {
				return err
			}
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
	return errors.Join(fmt.Errorf("no GPU %s among the %d that the driver has", cfg.UUID, len(candidates)), err)
}

// openNode opens the GPU's device file, or the first that opens.
func openNode(cfg Config) (*os.File, error) {
	first, last := cfg.Index, cfg.Index
	if cfg.Index < 0 {
		first, last = 0, 31
	}
	var why error
	for i := first; i <= last; i++ {
		f, err := os.OpenFile(fmt.Sprintf(cfg.DevicePattern, i), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			return f, nil
		}
		if why == nil || errors.Is(why, os.ErrNotExist) {
			why = err
		}
	}
	return nil, why
}

// instance is where a GPU is among RM's.
type instance struct{ device, sub uint32 }

// candidates returns the GPUs that may be the one meant, in the driver's order.
// With a UUID these are all. Without one it is the only one there is, or the one
// with the index as its number, or the first. A driver that does not tell is
// taken to number them as the device files are.
func (c *client) candidates(cfg Config) []instance {
	guess := []instance{{device: uint32(max(cfg.Index, 0))}}
	ids := make([]byte, 4*attachedIDs)
	for i := range ids {
		ids[i] = 0xff
	}
	if c.control(c.handle, nvgpu.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, ids) != nil {
		return guess
	}
	var all []instance
	for i := range attachedIDs {
		id := le.Uint32(ids[4*i:])
		if id == noID {
			break
		}
		info := make([]byte, sizeIDInfo)
		le.PutUint32(info[idInfoGPU:], id)
		if c.control(c.handle, nvgpu.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info) == nil {
			all = append(all, instance{device: le.Uint32(info[idInfoDevice:]), sub: le.Uint32(info[idInfoSub:])})
		}
	}
	switch {
	case len(all) == 0:
		return guess
	case cfg.UUID != "":
		return all
	case len(all) == 1 || cfg.Index < 0:
		return all[:1]
	}
	for _, in := range all {
		if in.device == uint32(cfg.Index) {
			return []instance{in}
		}
	}
	return guess
}

func (c *client) attach(in instance) error {
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

// detach gives device and subdevice up, which goes with it.
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
		return 0, fmt.Errorf("read GPU clock: it says %d ns", ns)
	}
	return int64(ns), nil
}

// close frees the client, and with it all that it still has. Twice equals once.
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
