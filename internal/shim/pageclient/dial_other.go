//go:build !linux

package pageclient

import (
	"context"
	"errors"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// connection does not exist on this system: the daemon runs on Linux only.
type connection struct {
	page     *pageabi.Page
	status   *pageabi.Status
	doorbell int
	users    int
	ended    bool
}

func dial(context.Context) (*connection, error) { return nil, errors.New("giveway runs on Linux only") }

func (*connection) waitForEnd() {}
func (*connection) close()      {}
