package discover

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

func TestComputeGroups(t *testing.T) {
	const gpfifo, compute, dma = 0xc86f, 0xcbc0, 0xc8b5
	objects := []nvrm.Object{
		{Handle: 2, Parent: 1, Class: nvrm.ClassDevice},
		{Handle: 3, Parent: 2, Class: nvrm.ClassSubdevice},
		{Handle: 4, Parent: 9, Class: nvrm.ClassSubdevice}, // on another device
		{Handle: 10, Parent: 2, Class: nvrm.ClassChannelGroup},
		{Handle: 13, Parent: 10, Class: gpfifo},
		{Handle: 11, Parent: 10, Class: gpfifo},
		{Handle: 12, Parent: 11, Class: compute},
		{Handle: 14, Parent: 13, Class: compute},
		{Handle: 20, Parent: 2, Class: nvrm.ClassChannelGroup}, // for a copy engine
		{Handle: 21, Parent: 20, Class: gpfifo},
		{Handle: 22, Parent: 21, Class: dma},
		{Handle: 30, Parent: 7, Class: nvrm.ClassChannelGroup}, // on a device without a subdevice
		{Handle: 31, Parent: 30, Class: gpfifo},
		{Handle: 32, Parent: 31, Class: compute},
		{Handle: 40, Parent: 40, Class: compute}, // its own parent
		{Handle: 41, Parent: 99, Class: compute}, // parent unknown
		{Handle: 42, Parent: 2, Class: gpfifo},   // in no group
		{Handle: 43, Parent: 42, Class: compute},
	}
	want := []Group{{Key: Key{Handle: 10}, Device: 2, Subdevice: 3, Channels: []nvrm.Handle{11, 13}}}
	if got := computeGroups(objects); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := computeGroups(nil); got != nil {
		t.Errorf("without objects: got %+v", got)
	}
}

// TestNamedObjectsAreFound checks that objects with unusual handles are found if a traced
// call named them.
func TestNamedObjectsAreFound(t *testing.T) {
	f := nvrmtest.New(nvrmtest.Config{}).Open()
	defer f.Close()
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	const group, channel, compute = 0x5d000000, 0x5d000001, 0x5d000002
	for _, o := range []nvrm.Object{
		{Handle: group, Parent: c.Device, Class: nvrm.ClassChannelGroup},
		{Handle: channel, Parent: group, Class: 0xc86f},
		{Handle: compute, Parent: channel, Class: 0xcbc0},
	} {
		params := make([]byte, 20)
		params[12] = 1
		if o.Class != nvrm.ClassChannelGroup {
			params = nil
		}
		if _, err := nvrm.Alloc(f, c.Client, o.Parent, o.Handle, o.Class, params); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		known []nvrm.Handle
		want  []nvrm.Handle
	}{
		{nil, []nvrm.Handle{c.Compute.Group}},
		{[]nvrm.Handle{compute}, []nvrm.Handle{c.Compute.Group, group}},
		{[]nvrm.Handle{0, 1, c.Client, 0x5dffffff, group, channel, compute}, []nvrm.Handle{c.Compute.Group, group}},
	} {
		groups, err := groupsOf(f, c.Client, test.known)
		var got []nvrm.Handle
		for _, g := range groups {
			got = append(got, g.Handle)
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("with %v: got %v, %v; want %v", test.known, got, err, test.want)
		}
	}
	if _, err := groupsOf(f, c.Client+1, nil); !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("unknown client: got %v, want NV_ERR_INVALID_CLIENT", err)
	}
}
