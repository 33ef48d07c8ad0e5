package nvidia

import (
	"errors"
	"fmt"
	"slices"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

var errNoChannels = errors.New("all known channels of the group were freed")

// enable enables or disables the channels of the group. The driver refuses a whole list
// because of one channel that was freed, and also if the subdevice was freed. Neither means
// that the group is gone: an error means that only if a look-up of the group says so.
func (g *group) enable(on bool) error {
	err := g.switchChannels(on)
	if !errors.Is(err, nvrm.ErrInvalidChannel) && !nvrm.IsGone(err) {
		return err
	}
	if _, gone := nvrm.Lookup(g.file, g.Client, g.Handle); nvrm.IsGone(gone) {
		return gone
	}
	if nvrm.IsGone(err) {
		return fmt.Errorf("change channels of group %v, which still exists: %v", g.Handle, err) // not wrapped: it would mean gone
	}
	if err := g.dropFreed(); err != nil {
		return err
	}
	if on {
		return g.enableEach()
	}
	if len(g.exist) == 0 {
		return errNoChannels // a stop without effect must not count as one
	}
	return g.switchChannels(on)
}

// switchChannels enables or disables the channels that exist in as few calls as possible.
func (g *group) switchChannels(on bool) error {
	for batch := range slices.Chunk(g.channels(), nvrm.MaxChannels) {
		if err := nvrm.DisableChannels(g.file, g.Client, g.Subdevice, batch, !on); err != nil {
			return err
		}
	}
	return nil
}

// enableEach enables the channels one by one: a channel that the driver refuses must not keep
// the others disabled.
func (g *group) enableEach() error {
	var errs []error
	for _, c := range g.channels() {
		errs = append(errs, nvrm.DisableChannels(g.file, g.Client, g.Subdevice, []nvrm.Handle{c}, false))
	}
	return errors.Join(errs...)
}

func (g *group) channels() []nvrm.Handle {
	if g.exist != nil {
		return g.exist
	}
	return g.Channels
}

// dropFreed makes exist the channels that RM still has. Channels stays as it is, because the
// daemon may encode it for another guardian meanwhile.
func (g *group) dropFreed() error {
	exist := []nvrm.Handle{}
	for _, c := range g.channels() {
		o, err := nvrm.Lookup(g.file, g.Client, c)
		switch {
		case err == nil && nvrm.IsChannel(o.Class) && o.Parent == g.Handle:
			exist = append(exist, c)
		case err != nil && !nvrm.IsGone(err):
			return err
		}
	}
	g.exist = exist
	return nil
}
