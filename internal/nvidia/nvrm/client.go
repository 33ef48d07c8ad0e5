package nvrm

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// RM numbers clients as follows. The upper bits of a handle say what kind of client it
// is; the lower bits are a counter. One counter serves all clients, the kernel's own
// included. It goes up by one per client while the driver is loaded, wraps after a
// million, and skips handles in use. From resserv.h and
// _serverCreateEntryAndLockForNewClient in rs_server.c.
const (
	firstClient = 0xc1d00000
	ClientMask  = 0xfffff // the bits of a handle that hold the counter
)

// NewClient makes a client of our own. Its handle shows how far RM's counter is.
func NewClient(f Ioctler) (Handle, error) { return Alloc(f, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil) }

// Owner says which open file a client belongs to, as seen through one open file.
type Owner int

const (
	NoFile    Owner = iota // there is no such client
	OtherFile              // the client was made through another open file
	ThisFile               // the client was made through this one
)

func (o Owner) String() string {
	return [...]string{NoFile: "no open file", OtherFile: "another open file", ThisFile: "this open file"}[o]
}

// The sharePolicy of RM_SHARE is an RS_SHARE_POLICY (rs_access.h): target 0, accessMask 4,
// type 8, action 10.
const (
	shareAction        = 8 + 10
	shareRevokeNothing = 1 | 4 // REVOKE and COMPOSE, with type and mask zero
)

// OwnerOf returns the owner of a client. It changes nothing and writes nothing to the
// kernel's log, whatever the answer.
//
// It asks RM to share object zero, which no client has, and goes by the reason of the
// refusal. RM looks for the client first (serverShareResourceAccess in rs_server.c),
// then compares its file (rmclientValidate_IMPL in client.c), then looks for the object.
// None of these logs anything. A control that names an unknown client does leave a line
// in the log: RmDeprecatedGetControlHandler in rmapi_deprecated_control.c writes it, and
// no other call gets there.
//
// The sources of 535 to 595 say so, and 580.159.04 did so on an H200. A caller should still
// verify it first, with a client of its own before and after it is freed.
func OwnerOf(f Ioctler, client Handle) (Owner, error) {
	arg := escShare.arg(client)
	arg[shareAction] = shareRevokeNothing
	switch err := escShare.call(f, arg, nil); err {
	case ErrInvalidObjectHandle, ErrInvalidObject: // the latter up to 550
		return NoFile, nil
	case ErrInvalidClient:
		return OtherFile, nil
	case ErrObjectNotFound:
		return ThisFile, nil
	case nil:
		return NoFile, fmt.Errorf("share no object of client %v: it was not refused", client)
	default:
		return NoFile, fmt.Errorf("share no object of client %v: %w", client, err)
	}
}

// FirstClients returns the first n handles that RM gives out.
func FirstClients(n int) []Handle {
	handles := make([]Handle, n)
	for i := range handles {
		handles[i] = firstClient + Handle(i)
	}
	return handles
}

// FindClient tries the guesses in order and returns the first that is a client made
// through f. wrong counts the handles that were not. Each of them may add a line to the
// kernel's log.
func FindClient(f Ioctler, guesses []Handle) (client Handle, wrong int, err error) {
	for wrong, client := range guesses {
		if _, err := handleInfo(f, client, client, indexClass); !errors.Is(err, ErrInvalidClient) {
			return client, wrong, err
		}
	}
	return 0, len(guesses), fmt.Errorf("no client among %d handles: %w", len(guesses), ErrInvalidClient)
}
