package nvrmtest

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/fusedev"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// client is a tree of objects. Its handle is that of the root object.
type client struct {
	handle  nvrm.Handle
	owner   *openFile
	objects map[nvrm.Handle]*object
	next    nvrm.Handle // for objects whose handle RM chooses
}

type object struct {
	handle   nvrm.Handle
	class    uint32
	parent   *object
	children []*object

	group    *group // set for channel groups
	disabled bool   // for channels
}

// group is the state of a channel group.
type group struct {
	id          GroupID
	engine      uint32
	slice       uint64 // us
	interrupted bool   // GPU.Interrupt was called
}

const (
	engineGraphics = 1 // NV2080_ENGINE_TYPE_GRAPHICS, from cl2080_notification.h
	firstChosen    = 0xcaf00001
)

// The slice of a new group and of one with compute objects, in us, as seen on an H200.
// When the driver changes it is unknown; the double does so when a compute object is made.
const (
	sliceGroup   = 1024
	sliceCompute = 2048
)

func isRoot(class uint32) bool {
	return class == nvgpu.NV01_ROOT || class == nvgpu.NV01_ROOT_NON_PRIV || class == nvgpu.NV01_ROOT_CLIENT
}

func isCopy(class uint32) bool { return class&0xff == 0xb5 && class > 0xa000 }

// parentClass returns a test for the class of the parent of an object of a class. known
// reports whether the double has that class.
func parentClass(class uint32) (fits func(uint32) bool, known bool) {
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

// alloc implements both forms of NV_ESC_RM_ALLOC.
func (f *openFile) alloc(mem fusedev.Memory, arg []byte, paramsSize uint32) nvrm.Status {
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
	fits, known := parentClass(class)
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
		f.rm.updateGroup(p) // it has one more enabled channel
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

// chooseClient returns the next client handle. The counter wraps after a million. A handle
// in use is skipped by 1024, the number of RM's buckets, without moving the counter. As in
// _serverCreateEntryAndLockForNewClient.
func (rm *RM) chooseClient() nvrm.Handle {
	h := rm.nextClient
	rm.nextClient = h&^nvrm.ClientMask | (h+1)&nvrm.ClientMask
	for rm.clients[h] != nil {
		h += 1024
	}
	return h
}

// share implements NV_ESC_RM_SHARE for unknown objects, which is refused. The order of the
// checks is that of serverShareResourceAccess. Sharing an existing object is not
// supported.
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

// newGroup makes a group from NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, 20 bytes with
// engineType at 12. From nvos.h.
func (rm *RM) newGroup(mem fusedev.Memory, params uint64, size uint32) (*group, nvrm.Status) {
	buf := make([]byte, 20)
	if params == 0 || size != 0 && int(size) != len(buf) {
		return nil, nvrm.ErrInvalidArgument
	}
	if err := mem.Read(params, buf); err != nil {
		return nil, errInvalidAddress
	}
	g := &group{engine: le.Uint32(buf[12:])}
	g.id = rm.leastUnused(g.engine)
	if gpu := rm.gpu(g); gpu != nil {
		gpu.Opened(g.id)
	}
	rm.setSlice(g, sliceGroup)
	return g, nvrm.OK
}

// leastUnused returns the number of a new group. Like the driver it gives out the least one
// that no group of the runlist has, so a group that is freed and made again has the same. Each
// engine has a runlist.
func (rm *RM) leastUnused(engine uint32) GroupID {
	used := map[GroupID]bool{}
	for _, c := range rm.clients {
		for _, o := range c.objects {
			if o.group != nil && o.group.engine == engine {
				used[o.group.id] = true
			}
		}
	}
	id := GroupID(0)
	for used[id] {
		id++
	}
	return id
}

// setSlice sets the slice of a group. It reads back as set; the GPU's shortest slice is one
// microsecond.
func (rm *RM) setSlice(g *group, us uint64) {
	g.slice = us
	if gpu := rm.gpu(g); gpu != nil {
		gpu.SetSlice(g.id, time.Duration(min(max(us, 1), 1<<32))*time.Microsecond)
	}
}

// gpu returns the GPU of a group, or nil for groups of copy engines, which have runlists of
// their own that are not modelled.
func (rm *RM) gpu(g *group) GPU {
	if g.engine != engineGraphics {
		return nil
	}
	return rm.cfg.GPU
}

// freeObject implements NV_ESC_RM_FREE. Like the driver it ignores the parent.
func (f *openFile) freeObject(arg []byte) nvrm.Status {
	c, status := f.client(nvrm.Handle(le.Uint32(arg[0:])), nvrm.ErrInvalidObjectHandle)
	if status != nvrm.OK {
		return status
	}
	o := c.objects[nvrm.Handle(le.Uint32(arg[8:]))]
	if o == nil {
		return nvrm.OK // as the driver answers
	}
	f.rm.free(c, o)
	if o.handle == c.handle {
		delete(f.rm.clients, c.handle)
	}
	return nvrm.OK
}

// free removes o and the objects below it from the tree.
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

// updateGroup makes the GPU interrupt a group whose channels are all disabled, and restore
// one that has an enabled channel.
func (rm *RM) updateGroup(o *object) {
	g := o.group
	gpu := rm.gpu(g)
	enabled := func(ch *object) bool { return !ch.disabled }
	off := len(o.children) > 0 && !slices.ContainsFunc(o.children, enabled)
	if gpu == nil || off == g.interrupted {
		return
	}
	if g.interrupted = off; off {
		gpu.Interrupt(g.id)
	} else {
		gpu.Restore(g.id)
	}
}
