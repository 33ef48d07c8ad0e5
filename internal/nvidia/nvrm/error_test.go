package nvrm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// TestErrnoAndStatusAreReturned checks that every call returns the kernel's errno and RM's
// status as errors.
func TestErrnoAndStatusAreReturned(t *testing.T) {
	for _, tt := range []struct {
		name string
		call nvrmtest.Call
		do   func(nvrm.Ioctler, nvrmtest.Context) error
	}{
		{"Alloc", nvrmtest.Alloc(nvrm.ClassDevice), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := nvrm.Alloc(f, c.Client, c.Client, 0, nvrm.ClassDevice, nil)
			return err
		}},
		{"Free", nvrmtest.Free(), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			return nvrm.Free(f, c.Client, c.Device, c.Compute.Group)
		}},
		{"Lookup", nvrmtest.Control(nvrmtest.GetHandleInfo), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := nvrm.Lookup(f, c.Client, c.Compute.Group)
			return err
		}},
		{"FindClient", nvrmtest.Control(nvrmtest.GetHandleInfo), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, _, err := nvrm.FindClient(f, nvrm.FirstClients(1))
			return err
		}},
		{"NewClient", nvrmtest.Alloc(nvgpu.NV01_ROOT_CLIENT), func(f nvrm.Ioctler, _ nvrmtest.Context) error {
			_, err := nvrm.NewClient(f)
			return err
		}},
		{"OwnerOf", nvrmtest.Share(), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := nvrm.OwnerOf(f, c.Client)
			return err
		}},
		{"Objects", nvrmtest.Control(nvrmtest.GetHandleInfo), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := nvrm.Objects(f, c.Client, 100)
			return err
		}},
		{"UUID", nvrmtest.Control(nvrmtest.GetGIDInfo), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := nvrm.UUID(f, c.Client, c.Subdevice)
			return err
		}},
		{"ID", nvrmtest.Control(nvrmtest.GetInfo), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := groupOf(f, c).ID()
			return err
		}},
		{"Timeslice", nvrmtest.Control(nvrmtest.GetTimeslice), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			_, err := groupOf(f, c).Timeslice()
			return err
		}},
		{"SetTimeslice", nvrmtest.Control(nvrmtest.SetTimeslice), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			return groupOf(f, c).SetTimeslice(1)
		}},
		{"DisableChannels", nvrmtest.Control(nvrmtest.DisableChannels), func(f nvrm.Ioctler, c nvrmtest.Context) error {
			return nvrm.DisableChannels(f, c.Client, c.Subdevice, c.Compute.Channels, true)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00000})
			f, c := context(t, rm)
			rm.Inject(tt.call, nvrmtest.Fault{Errno: unix.ENODEV})
			if err := tt.do(f, c); !errors.Is(err, unix.ENODEV) {
				t.Errorf("got %v, want ENODEV", err)
			}
			rm.Inject(tt.call, nvrmtest.Fault{Status: nvrm.ErrGPUIsLost, Times: 1})
			if err := tt.do(f, c); !errors.Is(err, nvrm.ErrGPUIsLost) {
				t.Errorf("got %v, want NV_ERR_GPU_IS_LOST", err)
			}
			if err := tt.do(f, c); err != nil {
				t.Errorf("after the fault: got %v, want no error", err)
			}
		})
	}
}

func context(t *testing.T, rm *nvrmtest.RM) (*nvrmtest.File, nvrmtest.Context) {
	t.Helper()
	f := rm.Open()
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	return f, c
}

func groupOf(f nvrm.Ioctler, c nvrmtest.Context) nvrm.Group {
	return nvrm.Group{File: f, Client: c.Client, Handle: c.Compute.Group}
}

func TestStatus(t *testing.T) {
	for s, want := range map[nvrm.Status]string{
		nvrm.OK: "NV_OK", 0x21: "NV_ERR_INVALID_CHANNEL", 0x23: "NV_ERR_INVALID_CLIENT", 0x38: "NV_STATUS 0x38",
		0x3a: "NV_ERR_INVALID_PARAM_STRUCT", 0x56: "NV_ERR_NOT_SUPPORTED", 0x7e: "NV_STATUS 0x7e",
	} {
		if s.Error() != want {
			t.Errorf("name of %#x: got %q, want %q", uint32(s), s.Error(), want)
		}
	}
	for _, s := range []nvrm.Status{0x0f, 0x23, 0x31, 0x33, 0x57} {
		if !nvrm.IsGone(s) {
			t.Errorf("%v: IsGone is false, want true", s)
		}
	}
	for _, s := range []nvrm.Status{nvrm.OK, 0x1b, 0x1f, 0x21, 0x3a, 0x56, 0x65, 0xffff} {
		if nvrm.IsGone(s) {
			t.Errorf("%v: IsGone is true, want false", s)
		}
	}
}

func TestErrorsNameTheCall(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	f, c := context(t, rm)
	rm.Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Status: nvrm.ErrInsufficientPermissions})
	err := groupOf(f, c).SetTimeslice(1)
	for _, part := range []string{"a06c0103", "5c000015", "INSUFFICIENT_PERMISSIONS"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want one that contains %s", err, part)
		}
	}
}

func TestDisableChannelsLimits(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	f, c := context(t, rm)
	disable := func(channels []nvrm.Handle) error {
		return nvrm.DisableChannels(f, c.Client, c.Subdevice, channels, true)
	}
	for _, n := range []int{0, nvrm.MaxChannels + 1} {
		if disable(make([]nvrm.Handle, n)) == nil {
			t.Errorf("%d channels: got no error", n)
		}
	}
	if n := rm.Calls(nvrmtest.Control(nvrmtest.DisableChannels)); n != 0 {
		t.Errorf("RM was called %d times, want 0", n)
	}
	all := make([]nvrm.Handle, nvrm.MaxChannels)
	for i := range all {
		all[i] = c.Compute.Channels[i%8]
	}
	if err := disable(all); err != nil {
		t.Errorf("%d channels: %v", len(all), err)
	}
	all[63] = c.Compute.Group + 1
	if err := disable(all); !errors.Is(err, nvrm.ErrInvalidChannel) || nvrm.IsGone(err) {
		t.Errorf("an unknown channel: got %v, want %v, which does not mean gone", err, nvrm.ErrInvalidChannel)
	}
}
