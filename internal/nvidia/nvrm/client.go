package nvrm

import (
	"errors"
	"fmt"
	"iter"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// How RM numbers clients: the upper bits of a handle say what kind of client it
// is, the lower ones count. There is one counter, of the kernel's own clients as
// well. It goes up by one with each, for as long as the driver is loaded, begins
// again at zero after a million, and passes over what is taken. From resserv.h and
// _serverCreateEntryAndLockForNewClient in rs_server.c.
const (
	firstClient = 0xc1d00000
	ClientMask  = 0xfffff // of a handle, what counts
)

// NewClient makes a client of our own. Its handle says how far RM has counted.
func NewClient(f Ioctler) (Handle, error) { return Alloc(f, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil) }

// Owner says who has a client, as seen through one open file.
type Owner int

// Nobody has it, another open file has it, or it was made through this one.
const (
	Nobody Owner = iota
	Another
	Self
)

// share is what NV_ESC_RM_SHARE is asked to do: nothing. Of RS_SHARE_POLICY in
// rs_access.h, from 8: target 8, accessMask 12, type 16, action 18.
const (
	shareAction   = 18
	shareDoesNone = 1 | 4 // REVOKE, of what there is (COMPOSE); type and mask are none
	shareStatus   = 20
)

// OwnerOf says who has a client. Nothing is changed, and nothing is written to the
// kernel's log, whatever the answer.
//
// It asks to share the object zero, which no client has, and looks at why it may
// not: RM looks for the client first (serverShareResourceAccess in rs_server.c),
// then at whose it is (rmclientValidate_IMPL in client.c), then for the object.
// None of these three says anything. What a wrong client in a control leaves in
// the log comes from a look at old controls before all that
// (RmDeprecatedGetControlHandler in rmapi_deprecated_control.c), and no other
// call passes there.
//
// This was read from the sources of 535 to 595 and has not been seen on a GPU.
// Whoever relies on it first asks about a client of their own, before and after it
// is freed.
func OwnerOf(f Ioctler, client Handle) (Owner, error) {
	// NVOS57_PARAMETERS: hClient 0, hObject 4, sharePolicy 8, status 20.
	var buf [sizeNVOS57]byte
	arg := buf[:]
	le.PutUint32(arg[0:], uint32(client))
	arg[shareAction] = shareDoesNone
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_SHARE, sizeNVOS57), arg); err != nil {
		return Nobody, fmt.Errorf("share: %w", err)
	}
	switch s := Status(le.Uint32(arg[shareStatus:])); s {
	case ErrInvalidObjectHandle, ErrInvalidObject: // the latter up to 550
		return Nobody, nil
	case ErrInvalidClient:
		return Another, nil
	case ErrObjectNotFound:
		return Self, nil
	default:
		return Nobody, fmt.Errorf("share nothing of %v: answered %w", client, s)
	}
}

// FirstClients are the n handles that RM gives out first.
func FirstClients(n int) iter.Seq[Handle] {
	return func(yield func(Handle) bool) {
		for i := 0; i < n && yield(firstClient+Handle(i)); i++ {
		}
	}
}

// FindClient returns the handle of the client that was made through f, if it is
// one of those guessed at. Each wrong guess may cost a line in the kernel's log, so
// it stops at the first that is right; the count of wrong ones is returned.
func FindClient(f Ioctler, guesses iter.Seq[Handle]) (client Handle, wrong int, err error) {
	for client := range guesses {
		_, err := handleInfo(f, client, client, indexClass)
		if err == nil {
			return client, wrong, nil
		}
		if !errors.Is(err, ErrInvalidClient) {
			return 0, wrong, err
		}
		wrong++
	}
	return 0, wrong, fmt.Errorf("no client among %d handles: %w", wrong, ErrInvalidClient)
}
