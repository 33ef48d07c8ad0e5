package nvrmtest

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// client is a tree of objects. Its own handle is the root's.
type client struct {
	handle  nvrm.Handle
	owner   *openFile
	objects map[nvrm.Handle]*object
	next    nvrm.Handle // that RM chooses itself
}

type object struct {
	handle   nvrm.Handle
	class    uint32
	parent   *object
	children []*object

	group    *group // of a channel group
	disabled bool   // of a channel
}

// group is what a channel group has besides.
type group struct {
	id     GroupID
	engine uint32
	slice  uint64 // us
	off    bool   // the GPU was told that it is interrupted
}

const (
	engineGraphics = 1 // NV2080_ENGINE_TYPE_GRAPHICS, from cl2080_notification.h
	firstChosen    = 0xcaf00001
)

// The slice that a group is made with, us, and the one that a group with compute
// objects was found to have. What changes it is not known; here their making does.
const (
	sliceGroup   = 1024
	sliceCompute = 2048
)

func isRoot(class uint32) bool {
	return class == nvgpu.NV01_ROOT || class == nvgpu.NV01_ROOT_NON_PRIV || class == nvgpu.NV01_ROOT_CLIENT
}

func isCopy(class uint32) bool { return class&0xff == 0xb5 && class > 0xa000 }

// parentOf says what an object of a class is a child of, and whether there is
// such a class.
func parentOf(class uint32) (fits func(uint32) bool, known bool) {
	is := func(want uint32) func(uint32) bool { return func(c uint32) bool { return c == want } }
	switch {
	case class == nvrm.ClassDevice:
		return isRoot, true
	case class == nvrm.ClassSubdevice, class == nvrm.ClassChannelGroup:
		return is(nvrm.ClassDevice), true
	case nvrm.IsChannel(class):
		return is(nvrm.ClassChannelGroup), true
	case nvrm.IsCompute(class), isCopy(class):
		return nvrm.IsChannel, true
	}
	return nil, false
}

// alloc is NV_ESC_RM_ALLOC, in both its forms.
func (f *openFile) alloc(mem Memory, arg []byte, paramsSize uint32) nvrm.Status {
	root, parent, handle := nvrm.Handle(le.Uint32(arg[0:])), nvrm.Handle(le.Uint32(arg[4:])), nvrm.Handle(le.Uint32(arg[8:]))
	class, params := le.Uint32(arg[12:]), le.Uint64(arg[16:])
	if isRoot(class) {
		c, status := f.allocClient(handle, class)
		if status == nvrm.OK {
			le.PutUint32(arg[8:], uint32(c.handle))
		}
		return status
	}
	c, status := f.client(root, nvrm.ErrInvalidObjectHandle)
	if status != nvrm.OK {
		return status
	}
	fits, known := parentOf(class)
	if !known {
		return nvrm.ErrInvalidClass
	}
	p := c.objects[parent]
	if p == nil {
		return nvrm.ErrObjectNotFound
	}
	if !fits(p.class) || handle == c.handle {
		return nvrm.ErrInvalidObjectParent
	}
	if c.objects[handle] != nil {
		return errInsertDuplicateName
	}
	o := &object{handle: handle, class: class, parent: p}
	if class == nvrm.ClassChannelGroup {
		if o.group, status = f.rm.newGroup(mem, params, paramsSize); status != nvrm.OK {
			return status
		}
	}
	if o.handle == 0 {
		o.handle = c.next
		c.next++
	}
	p.children = append(p.children, o)
	c.objects[o.handle] = o
	switch {
	case nvrm.IsChannel(class):
		f.rm.updateGroup(p) // one more, and it is enabled
	case nvrm.IsCompute(class) && p.parent.group.slice == sliceGroup:
		f.rm.setSlice(p.parent.group, sliceCompute)
	}
	le.PutUint32(arg[8:], uint32(o.handle))
	return nvrm.OK
}

func (f *openFile) allocClient(h nvrm.Handle, class uint32) (*client, nvrm.Status) {
	rm := f.rm
	if h == 0 {
		h = rm.chooseClient()
	}
	if rm.clients[h] != nil {
		return nil, errInsertDuplicateName
	}
	c := &client{handle: h, owner: f, next: firstChosen}
	c.objects = map[nvrm.Handle]*object{h: {handle: h, class: class}}
	rm.clients[h] = c
	return c, nvrm.OK
}

// chooseClient counts on, round a ring of a million. A handle that is taken is
// passed over by 1024, the number of RM's buckets, and the count does not follow.
// As in _serverCreateEntryAndLockForNewClient.
func (rm *RM) chooseClient() nvrm.Handle {
	h := rm.nextClient
	rm.nextClient = h&^nvrm.ClientMask | (h+1)&nvrm.ClientMask
	for rm.clients[h] != nil {
		h += 1024
	}
	return h
}

// share is NV_ESC_RM_SHARE of an object that is not, which is refused. The order
// is that of serverShareResourceAccess. To share one that is, is not done here.
func (f *openFile) share(arg []byte) nvrm.Status {
	c, status := f.client(nvrm.Handle(le.Uint32(arg[0:])), nvrm.ErrInvalidObjectHandle)
	switch {
	case status != nvrm.OK:
		return status
	case c.objects[nvrm.Handle(le.Uint32(arg[4:]))] == nil:
		return nvrm.ErrObjectNotFound
	}
	return nvrm.ErrNotSupported
}

// newGroup reads NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: engineType is at 12 of
// 20 bytes. From nvos.h.
func (rm *RM) newGroup(mem Memory, params uint64, size uint32) (*group, nvrm.Status) {
	buf := make([]byte, 20)
	if params == 0 || size != 0 && int(size) != len(buf) {
		return nil, nvrm.ErrInvalidArgument
	}
	if err := mem.Read(params, buf); err != nil {
		return nil, errInvalidAddress
	}
	g := &group{id: rm.nextGroup, engine: le.Uint32(buf[12:])}
	rm.nextGroup++
	if gpu := rm.gpu(g); gpu != nil {
		gpu.Opened(g.id)
	}
	rm.setSlice(g, sliceGroup)
	return g, nvrm.OK
}

// setSlice sets a group's slice. It reads back as it was set; the GPU has none
// shorter than a microsecond.
func (rm *RM) setSlice(g *group, us uint64) {
	g.slice = us
	if gpu := rm.gpu(g); gpu != nil {
		gpu.SetSlice(g.id, time.Duration(min(max(us, 1), 1<<32))*time.Microsecond)
	}
}

// gpu returns what runs the group. Those of copy engines have runlists of their
// own, where nothing happens here.
func (rm *RM) gpu(g *group) GPU {
	if g.engine != engineGraphics {
		return nil
	}
	return rm.cfg.GPU
}

// freeCall is NV_ESC_RM_FREE. The parent that is named is not looked at.
func (f *openFile) freeCall(arg []byte) nvrm.Status {
	c, status := f.client(nvrm.Handle(le.Uint32(arg[0:])), nvrm.ErrInvalidObjectHandle)
	if status != nvrm.OK {
		return status
	}
	o := c.objects[nvrm.Handle(le.Uint32(arg[8:]))]
	if o == nil {
		return nvrm.OK // it is gone, as was asked
	}
	f.rm.free(c, o)
	if o.handle == c.handle {
		delete(f.rm.clients, c.handle)
	}
	return nvrm.OK
}

// free takes o, and what is below it, out of the tree.
func (rm *RM) free(c *client, o *object) {
	for len(o.children) > 0 {
		rm.free(c, o.children[len(o.children)-1])
	}
	delete(c.objects, o.handle)
	if o.parent != nil {
		o.parent.children = slices.DeleteFunc(o.parent.children, func(s *object) bool { return s == o })
	}
	switch {
	case o.group != nil && rm.gpu(o.group) != nil:
		rm.gpu(o.group).Closed(o.group.id)
	case nvrm.IsChannel(o.class):
		rm.updateGroup(o.parent)
	}
}

// updateGroup has the GPU stop a group of which every channel is disabled, and
// go on with one of which some is not.
func (rm *RM) updateGroup(o *object) {
	g := o.group
	gpu := rm.gpu(g)
	enabled := func(ch *object) bool { return !ch.disabled }
	off := len(o.children) > 0 && !slices.ContainsFunc(o.children, enabled)
	if gpu == nil || off == g.off {
		return
	}
	if g.off = off; off {
		gpu.Interrupt(g.id)
	} else {
		gpu.Restore(g.id)
	}
}
