package discover

import (
	"errors"
	"slices"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// dependsOn reports whether freeing object frees the group or a part of it.
func (g *Group) dependsOn(object nvrm.Handle) bool {
	return g.isFreedBy(object) || object == g.Subdevice || slices.Contains(g.Channels, object)
}

// isFreedBy reports whether freeing object frees the whole group.
func (g *Group) isFreedBy(object nvrm.Handle) bool {
	return object == g.Client || object == g.Handle || object == g.Device
}

// same reports whether RM has the same objects for both groups, as far as handles and numbers
// say: RM gives a group that is made again the number of the freed one.
func (g *Group) same(o *Group) bool {
	return g.Key == o.Key && g.ID == o.ID && g.GPU == o.GPU && g.Subdevice == o.Subdevice && slices.Equal(g.Channels, o.Channels)
}

// How many handles of a client are looked up. CUDA gives them out in sequence; if most of
// the first block is in use, more are looked up.
const (
	firstObjects = 0x400
	moreObjects  = 0x1000
)

// groupsOf returns the compute groups of a client, as RM knows them: without process and
// file. known are further handles of the client that calls have named.
func groupsOf(f nvrm.Ioctler, client nvrm.Handle, known []nvrm.Handle) ([]Group, error) {
	objects, err := nvrm.Objects(f, client, firstObjects)
	if n := len(objects); err == nil && n > 0 && objects[n-1].Handle-objects[0].Handle >= firstObjects*3/4 {
		objects, err = nvrm.Objects(f, client, moreObjects)
	}
	if err != nil {
		return nil, err
	}
	if objects, err = addKnown(f, client, objects, known); err != nil {
		return nil, err
	}
	groups := computeGroups(objects)
	confirmed := groups[:0]
	for _, g := range groups {
		g.Client = client
		g.ID, err = nvrm.Group{File: f, Client: client, Handle: g.Handle}.ID()
		if err == nil {
			g.GPU, err = nvrm.UUID(f, client, g.Subdevice)
		}
		switch {
		case err == nil:
			confirmed = append(confirmed, g)
		case nvrm.IsGone(err): // freed meanwhile
		default:
			return nil, err
		}
	}
	return confirmed, nil
}

// addKnown adds the objects with the handles known, and their parents.
func addKnown(f nvrm.Ioctler, client nvrm.Handle, objects []nvrm.Object, known []nvrm.Handle) ([]nvrm.Object, error) {
	have := map[nvrm.Handle]bool{0: true, client: true}
	for _, o := range objects {
		have[o.Handle] = true
	}
	for _, h := range known {
		for depth := 0; depth < 4 && !have[h]; depth++ { // compute, channel, group, device
			have[h] = true
			o, err := nvrm.Lookup(f, client, h)
			if nvrm.IsGone(err) && !errors.Is(err, nvrm.ErrInvalidClient) {
				break
			}
			if err != nil {
				return nil, err
			}
			objects = append(objects, o)
			h = o.Parent
		}
	}
	return objects, nil
}

// computeGroups returns the groups, among the objects of a client, that have a channel with
// a compute object.
func computeGroups(objects []nvrm.Object) []Group {
	byHandle := map[nvrm.Handle]nvrm.Object{}
	for _, o := range objects {
		byHandle[o.Handle] = o
	}
	var groups []Group
	for _, o := range objects {
		channel := byHandle[o.Parent]
		group := byHandle[channel.Parent]
		if !nvrm.IsCompute(o.Class) || !nvrm.IsChannel(channel.Class) || group.Class != nvrm.ClassChannelGroup ||
			slices.ContainsFunc(groups, func(g Group) bool { return g.Handle == group.Handle }) {
			continue
		}
		g := Group{Key: Key{Handle: group.Handle}, Device: group.Parent}
		for _, c := range objects {
			switch {
			case nvrm.IsChannel(c.Class) && c.Parent == group.Handle:
				g.Channels = append(g.Channels, c.Handle)
			case c.Class == nvrm.ClassSubdevice && c.Parent == group.Parent && g.Subdevice == 0:
				g.Subdevice = c.Handle
			}
		}
		slices.Sort(g.Channels)
		if g.Subdevice != 0 { // required to identify the GPU and to disable channels
			groups = append(groups, g)
		}
	}
	return groups
}
